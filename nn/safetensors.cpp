// Reads and writes safetensors files.
#include <algorithm>
#include <bit>
#include <cstring>

#include <nlohmann/json.hpp>

#include "lockstep/nn/hash_internal.h"
#include "lockstep/nn/safetensors_internal.h"
#include "lockstep/tensor/check_internal.h"
#include "lockstep/tensor/ops_internal.h"

namespace lockstep {
namespace nn::safetensors {
namespace {

std::string checksum_text(std::uint64_t hash) { return fmt::format("{:016x}", hash); }

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

static_assert(std::endian::native == std::endian::little, "tensors are written in native byte order");

std::size_t rank_of(DType dtype) {
  std::size_t rank = 0;
  while (kDTypes[rank].dtype != dtype) ++rank;
  return rank;
}

// Orders by alignment, the largest first, so that every tensor starts aligned; then by name. The safetensors library
// uses the same order.
std::vector<const StateDict::Entry*> ordered(const StateDict& dict) {
  std::vector<const StateDict::Entry*> order;
  for (const auto& entry : dict) {
    LOCKSTEP_CHECK(entry.second.defined(), "save: the entry {} is an undefined tensor",
                   lockstep::in_quotes(entry.first));
    LOCKSTEP_CHECK(entry.first != kMetadataKey, "save: the name {} is reserved by the format",
                   lockstep::in_quotes(entry.first));
    order.push_back(&entry);
  }
  std::sort(order.begin(), order.end(), [](const auto* a, const auto* b) {
    const std::size_t rank_a = rank_of(a->second.dtype()), rank_b = rank_of(b->second.dtype());
    return rank_a != rank_b ? rank_a < rank_b : a->first < b->first;
  });
  return order;
}

// The tensor, contiguous and on the CPU; copied only if needed.
Tensor packed(const Tensor& tensor) { return raw::contiguous(raw::to(tensor, Device())); }

std::string json_string(const std::string& text) {
  try {
    return nlohmann::json(text).dump();
  } catch (const nlohmann::json::exception&) {
    throw InvalidArgument(fmt::format("save: {} is not UTF-8", lockstep::in_quotes(text)));
  }
}

// The header, preceded by its length. Throws InvalidArgument if `load` would reject it.
std::string header_bytes(const std::vector<const StateDict::Entry*>& order, const Metadata& metadata) {
  std::string text(kTextOffset, '\0');
  text += fmt::format("{{{}:{{", json_string(std::string(kMetadataKey)));
  for (const auto& [key, value] : metadata) text += fmt::format("{}:{},", json_string(key), json_string(value));
  text.back() = '}';  // replaces the last comma; the checksum is always present
  std::uint64_t end = 0;
  for (const auto* entry : order) {
    const auto& [name, tensor] = *entry;
    const std::uint64_t begin = end;
    end += static_cast<std::uint64_t>(tensor.numel()) * item_size(tensor.dtype());
    text += fmt::format(",{}:{{\"dtype\":\"{}\",\"shape\":[{}],\"data_offsets\":[{},{}]}}", json_string(name),
                        kDTypes[rank_of(tensor.dtype())].name, fmt::join(tensor.shape(), ","), begin, end);
  }
  text += '}';
  text.append((8 - text.size() % 8) % 8, ' ');  // the payload starts aligned
  const std::uint64_t length = text.size() - kTextOffset;
  std::memcpy(text.data(), &length, kTextOffset);
  try {
    static_cast<void>(read_header(MemorySource(std::as_bytes(std::span(text)), "save"), text.size() + end));
  } catch (const IoError& error) {
    throw InvalidArgument(error.what());
  }
  return text;
}

}  // namespace

void write(const StateDict& dict, const Metadata& metadata, AtomicFile& file) {
  const auto order = ordered(dict);
  Hash hash;
  for (const auto* entry : order) hash.update(bytes_of(packed(entry->second)));
  Metadata all = metadata;
  all[kChecksumKey] = checksum_text(hash.digest());
  file.write(header_bytes(order, all));
  for (const auto* entry : order) file.write(bytes_of(packed(entry->second)));
}

}  // namespace nn::safetensors

void save(const StateDict& dict, const std::string& path, const Metadata& metadata) {
  AtomicFile file(path);
  nn::safetensors::write(dict, metadata, file);
  file.commit();
}

StateDict load(const std::string& path, Metadata* metadata) { return nn::safetensors::read(InputFile(path), metadata); }

StateDict parse_safetensors(std::span<const std::byte> bytes, const std::string& name, Metadata* metadata) {
  return nn::safetensors::read(MemorySource(bytes, name), metadata);
}

}  // namespace lockstep
