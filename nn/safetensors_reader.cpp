#include <algorithm>

#include "lockstep/nn/hash_internal.h"
#include "lockstep/nn/safetensors_internal.h"
#include "lockstep/tensor/check_internal.h"
#include "lockstep/tensor/ops_internal.h"

namespace lockstep {
namespace nn::safetensors {
namespace {

// Rejects PyTorch's own files: a zip archive, or before 1.6 a bare pickle. Both can run code when loaded. A
// safetensors file may start with the same bytes, if they are the length of its header.
void reject_pickles(const ByteSource& source) {
  std::byte start[kTextOffset + 1] = {};
  source.read_at(0, std::span(start).first(std::min<std::uint64_t>(source.size(), sizeof(start))));
  const auto header_bytes = ByteReader(start, source.name()).little<std::uint64_t>("header length");
  if (header_bytes <= limits::kSafetensorsHeaderBytes && start[kTextOffset] == std::byte{'{'}) return;
  const std::string_view text(reinterpret_cast<const char*>(start), sizeof(start));
  const bool is_pickle = text[0] == '\x80' && text[1] >= 2 && text[1] <= 5;  // text[1] is the protocol
  if (!is_pickle && !text.starts_with("PK\x03\x04")) return;
  throw IoError(
      fmt::format("{}: this is a PyTorch pickle, not safetensors; convert it with\npython3 -c 'import sys, torch, "
                  "safetensors.torch as s; s.save_file(torch.load(sys.argv[1]), sys.argv[2])' IN.pt OUT.safetensors",
                  source.name()));
}

// Rejects bool bytes other than 0 and 1: reading such a bool is undefined behaviour.
void check_bools(const Tensor& tensor, const Entry& entry, const std::string& file) {
  const auto bytes = bytes_of(tensor);
  const auto bad = std::find_if(bytes.begin(), bytes.end(), [](std::byte value) { return value > std::byte{1}; });
  LOCKSTEP_CHECK_IO(bad == bytes.end(), "{}: tensor {}: element {} is the byte {}, a bool is 0 or 1", file,
                    lockstep::in_quotes(entry.name), bad - bytes.begin(), static_cast<int>(*bad));
}

}  // namespace

StateDict read(const ByteSource& source, Metadata* metadata) {
  const std::string& file = source.name();
  reject_pickles(source);
  Header header = read_header(source, source.size());

  // read_header has checked that every tensor lies within the file.
  StateDict dict;
  Hash hash;
  for (Entry& entry : header.entries) {
    Tensor tensor = raw::empty(entry.shape, {.dtype = entry.dtype});
    const auto bytes = bytes_of(tensor);
    if (!bytes.empty()) source.read_at(header.payload + entry.begin, bytes);
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

}  // namespace lockstep
