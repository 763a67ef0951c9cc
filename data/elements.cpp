#include "lockstep/data/elements_internal.h"

#include <algorithm>
#include <cstring>
#include <vector>

#include "lockstep/base/check_internal.h"
#include "lockstep/tensor/ops/ops_internal.h"

namespace lockstep::data {
namespace {

template <class T>
T load(const std::byte* at) {
  T value;
  std::memcpy(&value, at, sizeof(T));
  return value;
}

// Converts elements in place to this machine's byte order and to values that their dtype allows.
void make_native(const Element& element, std::span<std::byte> bytes, const std::string& file) {
  for (auto at = bytes.begin(); element.swap && at != bytes.end(); at += static_cast<std::ptrdiff_t>(element.bytes))
    std::reverse(at, at + static_cast<std::ptrdiff_t>(element.bytes));
  if (element.kind == 'b') {  // any byte but 0 and 1 would be undefined behaviour as a bool
    for (std::byte& value : bytes) value = std::byte{value != std::byte{0}};
  } else if (element.kind == 'u' && element.bytes == 8) {
    for (std::size_t i = 0; i < bytes.size(); i += 8) {
      const auto value = load<std::uint64_t>(&bytes[i]);
      LOCKSTEP_CHECK_IO(value >> 63 == 0, "{}: the u64 value {} does not fit i64", file, value);
    }
  }
}

template <class Stored, class Target>
void widen(std::span<const std::byte> from, Target* to) {
  for (std::size_t i = 0; i < from.size(); i += sizeof(Stored)) *to++ = load<Stored>(&from[i]);
}

// Writes elements to a tensor whose dtype may be wider.
void widen(const Element& element, std::span<const std::byte> from, const Tensor& to) {
  if (element.bytes == item_size(to.dtype()))
    std::memcpy(to.raw_data(), from.data(), from.size());
  else if (element.bytes == 4)
    widen<std::uint32_t>(from, to.data<std::int64_t>());
  else if (element.bytes == 1)
    widen<std::int8_t>(from, to.data<std::int32_t>());
  else if (element.kind == 'i')
    widen<std::int16_t>(from, to.data<std::int32_t>());
  else
    widen<std::uint16_t>(from, to.data<std::int32_t>());
}

// Writes elements that arrive in column-major order to their places in a row-major tensor.
class ColumnMajor {
 public:
  explicit ColumnMajor(const Tensor& to) : to_(to), index_(to.shape()) {
    for (std::int64_t& index : index_) index = 0;
  }

  // `part` holds the next elements.
  void put(const Tensor& part) {
    const std::size_t bytes = item_size(part.dtype());
    const auto* from = static_cast<const std::byte*>(part.raw_data());
    for (std::int64_t i = 0; i < part.numel(); ++i, from += bytes) {
      std::memcpy(static_cast<std::byte*>(to_.raw_data()) + offset_ * static_cast<std::int64_t>(bytes), from, bytes);
      step();
    }
  }

 private:
  void step() {
    for (int dim = 0; dim < to_.dim(); ++dim) {
      offset_ += to_.strides()[dim];
      if (++index_[dim] < to_.shape()[dim]) return;
      offset_ -= to_.strides()[dim] * index_[dim];
      index_[dim] = 0;
    }
  }

  const Tensor& to_;
  Shape index_;              // of the next element
  std::int64_t offset_ = 0;  // of the next element, in elements
};

}  // namespace

std::optional<Element> element_of(std::string_view code, std::endian order) {
  struct Known {
    std::string_view code;
    DType dtype;
  };
  static constexpr Known kKnown[] = {
      {"b1", kBool},  {"u1", kUInt8}, {"i1", kInt32}, {"i2", kInt32},   {"u2", kInt32},   {"i4", kInt32},
      {"u4", kInt64}, {"i8", kInt64}, {"u8", kInt64}, {"f2", kFloat16}, {"f4", kFloat32}, {"f8", kFloat64},
  };
  const auto* known = std::ranges::find(kKnown, code, &Known::code);
  if (known == std::end(kKnown)) return std::nullopt;
  const auto bytes = static_cast<std::size_t>(code[1] - '0');
  return Element{code[0], bytes, bytes > 1 && order != std::endian::native, known->dtype};
}

Tensor read_elements(const ByteStream& stream, const Element& element, const Shape& shape, bool column_major) {
  const Tensor out = raw::empty(shape, {.dtype = element.dtype});
  const bool in_order = !column_major || out.dim() < 2;
  if (in_order && element.bytes == item_size(element.dtype)) {
    const std::span bytes(static_cast<std::byte*>(out.raw_data()),
                          element.bytes * static_cast<std::size_t>(out.numel()));
    if (!bytes.empty()) stream.read(bytes);
    make_native(element, bytes, stream.name);
    return out;
  }
  constexpr std::int64_t kChunkElements = 32 << 10;
  const Tensor flat = raw::view(out, {out.numel()});
  ColumnMajor order(out);
  std::vector<std::byte> chunk;
  for (std::int64_t first = 0; first < out.numel(); first += kChunkElements) {
    const std::int64_t count = std::min(kChunkElements, out.numel() - first);
    chunk.resize(static_cast<std::size_t>(count) * element.bytes);
    stream.read(chunk);
    make_native(element, chunk, stream.name);
    const Tensor part = in_order ? raw::slice(flat, 0, first, first + count, 1) : raw::empty({count}, out.options());
    widen(element, chunk, part);
    if (!in_order) order.put(part);
  }
  return out;
}

}  // namespace lockstep::data
