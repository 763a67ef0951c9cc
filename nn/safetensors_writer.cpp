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

std::string checksum_text(std::uint64_t hash) { return fmt::format("{:016x}", hash); }

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

}  // namespace lockstep
