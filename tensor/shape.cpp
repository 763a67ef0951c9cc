#include "lockstep/tensor/shape.h"

#include <algorithm>
#include <ostream>
#include <tuple>

#include "lockstep/base/check_internal.h"

namespace lockstep {

Shape::Shape(const std::int64_t* sizes, std::size_t count) {
  LOCKSTEP_CHECK(count <= kMaxDims, "shape: {} dimensions, at most {} are supported", count, kMaxDims);
  std::copy_n(sizes, count, sizes_);
  dim_ = static_cast<std::int32_t>(count);
}

void Shape::push_back(std::int64_t size) {
  LOCKSTEP_CHECK(dim_ < kMaxDims, "shape: more than {} dimensions", kMaxDims);
  sizes_[dim_++] = size;
}

void Shape::insert(int position, std::int64_t size) {
  push_back(size);
  std::rotate(sizes_ + position, sizes_ + dim_ - 1, sizes_ + dim_);
}

void Shape::erase(int position) {
  std::copy(sizes_ + position + 1, sizes_ + dim_, sizes_ + position);
  --dim_;
}

std::string Shape::to_string() const { return fmt::format("({})", fmt::join(begin(), end(), ", ")); }

std::ostream& operator<<(std::ostream& stream, const Shape& shape) { return stream << shape.to_string(); }

Strides contiguous_strides(const Shape& shape) {
  Strides strides = shape;
  std::int64_t step = 1;
  for (int i = shape.dim() - 1; i >= 0; --i) {
    strides[static_cast<std::size_t>(i)] = step;
    // Too large only without elements, or for a shape that the caller has yet to check: then it may wrap around.
    std::ignore = __builtin_mul_overflow(step, std::max<std::int64_t>(shape[static_cast<std::size_t>(i)], 1), &step);
  }
  return strides;
}

namespace {
[[noreturn]] void throw_no_tensor(const char* op, const Shape& shape, const char* reason) {
  throw InvalidArgument(fmt::format("{}: shape {} has {}", op, shape.to_string(), reason));
}
}  // namespace

std::int64_t checked_numel(const char* op, const Shape& shape) {
  std::int64_t product = 1;
  bool negative = false, too_many = false;
  for (std::int64_t size : shape) {
    negative |= size < 0;
    too_many |= __builtin_mul_overflow(product, size, &product);
  }
  if (negative) [[unlikely]]
    throw_no_tensor(op, shape, "a negative size");
  // A size of 0 hides overflow in the sizes before it; no tensor has more than 2^59 elements of 8 bytes.
  if (too_many || product >= std::int64_t{1} << 59) [[unlikely]]
    throw_no_tensor(op, shape, "too many elements");
  return product;
}

int wrap_dim(const char* op, std::int64_t dim, int dims) {
  const int limit = std::max(dims, 1);  // a 0-d tensor accepts 0 and -1, as in PyTorch
  LOCKSTEP_CHECK(dim >= -limit && dim < limit, "{}: dimension {} is outside [{}, {}) of a {}-d tensor", op, dim, -limit,
                 limit, dims);
  return static_cast<int>(dim < 0 ? dim + limit : dim);
}

bool try_broadcast(const Shape& a, const Shape& b, Shape* out) {
  const Shape& longer = a.dim() >= b.dim() ? a : b;
  const Shape& shorter = a.dim() >= b.dim() ? b : a;
  Shape result = longer;
  const std::size_t lead = longer.size() - shorter.size();
  for (std::size_t i = 0; i < shorter.size(); ++i) {
    const std::int64_t x = longer[lead + i], y = shorter[i];
    if (x != y && x != 1 && y != 1) return false;
    result[lead + i] = x == 1 ? y : x;
  }
  *out = result;
  return true;
}

Shape broadcast_shapes(const char* op, const Shape& a, const Shape& b) {
  Shape out;
  LOCKSTEP_CHECK(try_broadcast(a, b, &out), "{}: shapes {} and {} do not broadcast", op, a.to_string(), b.to_string());
  return out;
}

}  // namespace lockstep
