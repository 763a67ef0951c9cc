#include <algorithm>

#include "lockstep/nn/hash_internal.h"
#include "lockstep/nn/safetensors_internal.h"
#include "lockstep/tensor/check_internal.h"
#include "lockstep/tensor/ops.h"

namespace lockstep::inline LOCKSTEP_ABI {
namespace nn::safetensors {
namespace {

// People try this with PyTorch's own files: a zip archive, or before 1.6 a bare pickle. Both can run code when loaded.
void reject_pickles(std::span<const std::byte> start, const std::string& file) {
  const auto starts_with = [&](std::string_view magic) {
    return start.size() >= magic.size() &&
           std::equal(magic.begin(), magic.end(), start.begin(),
                      [](char a, std::byte b) { return static_cast<std::byte>(a) == b; });
  };
  if (!starts_with("PK\x03\x04") && !starts_with("\x80\x02")) return;
  throw IoError(
      fmt::format("{}: this is a PyTorch pickle, not safetensors; convert it with\npython3 -c 'import sys, torch, "
                  "safetensors.torch as s; s.save_file(torch.load(sys.argv[1]), sys.argv[2])' IN.pt OUT.safetensors",
                  file));
}

// C++ has no bool that is 7: reading one is undefined, so it must not come in.
void check_bools(const Tensor& tensor, const Entry& entry, const std::string& file) {
  const auto bytes = bytes_of(tensor);
  const auto bad = std::find_if(bytes.begin(), bytes.end(), [](std::byte value) { return value > std::byte{1}; });
  LOCKSTEP_CHECK_IO(bad == bytes.end(), "{}: tensor {}: element {} is the byte {}, a bool is 0 or 1", file,
                    lockstep::in_quotes(entry.name), bad - bytes.begin(), static_cast<int>(*bad));
}

}  // namespace

StateDict read(const ByteSource& source, Metadata* metadata) {
  const std::string& file = source.name();
  std::byte start[8] = {};
  const std::uint64_t size = source.size();
  const auto first = std::span(start).first(static_cast<std::size_t>(std::min<std::uint64_t>(size, 8)));
  source.read_at(0, first);
  reject_pickles(first, file);
  LOCKSTEP_CHECK_IO(size >= 8, "{}: {} bytes, a safetensors file has at least 8", file, size);

  const auto header_bytes = ByteReader(start, file).little<std::uint64_t>("header length");
  LOCKSTEP_CHECK_IO(header_bytes <= kMaxHeaderBytes, "{}: byte 0: the header has {} bytes, the limit is {}", file,
                    header_bytes, kMaxHeaderBytes);
  LOCKSTEP_CHECK_IO(header_bytes <= size - 8, "{}: byte 0: the header has {} bytes, {} follow: the file is truncated",
                    file, header_bytes, size - 8);
  std::string json(static_cast<std::size_t>(header_bytes), '\0');
  source.read_at(8, std::as_writable_bytes(std::span(json)));
  const std::uint64_t payload = 8 + header_bytes;
  Header header = parse_header(json, size - payload, file);
  std::string().swap(json);

  // From here on every length is known to lie within the file.
  StateDict dict;
  Hash hash;
  for (Entry& entry : header.entries) {
    Tensor tensor = raw::empty(entry.shape, {.dtype = entry.dtype});
    const auto bytes = bytes_of(tensor);
    if (!bytes.empty()) source.read_at(payload + entry.begin, bytes);
    hash.update(bytes);
    if (entry.dtype == kBool) check_bools(tensor, entry, file);
    dict.insert(std::move(entry.name), std::move(tensor));
  }
  if (const auto node = header.metadata.extract(kChecksumKey)) {
    const std::string found = checksum_text(hash.digest());
    LOCKSTEP_CHECK_IO(node.mapped() == found,
                      "{}: the payload's checksum is {}, the header says {}: the file is damaged", file, found,
                      lockstep::in_quotes(node.mapped()));
  }
  if (metadata) *metadata = std::move(header.metadata);
  return dict;
}

}  // namespace nn::safetensors

StateDict load(const std::string& path, Metadata* metadata) { return nn::safetensors::read(InputFile(path), metadata); }

StateDict parse_safetensors(std::span<const std::byte> bytes, const std::string& name, Metadata* metadata) {
  return nn::safetensors::read(MemorySource(bytes, name), metadata);
}

}  // namespace lockstep::inline LOCKSTEP_ABI
