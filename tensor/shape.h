/// \file
/// Shapes and strides: up to eight sizes stored in place, so that a Tensor's geometry never allocates.
#pragma once

#include <concepts>
#include <cstdint>
#include <initializer_list>
#include <iosfwd>
#include <span>
#include <string>
#include <vector>

#include "lockstep/base/error.h"

namespace lockstep {

inline constexpr int kMaxDims = 8;  ///< maximum number of dimensions

/// The sizes of a tensor's dimensions, kMaxDims at most; made from braces, a vector, a span, or one number.
class Shape {
 public:
  Shape() = default;
  /// One dimension: zeros(3), x.view(-1), x.sum(0).
  template <std::integral I>
  requires(!std::same_as<I, bool>) Shape(I size) : dim_(1) {  // NOLINT: implicit on purpose
    sizes_[0] = static_cast<std::int64_t>(size);
  }
  Shape(std::initializer_list<std::int64_t> sizes) : Shape(sizes.begin(), sizes.size()) {}
  Shape(const std::vector<std::int64_t>& sizes) : Shape(sizes.data(), sizes.size()) {}
  Shape(std::span<const std::int64_t> sizes) : Shape(sizes.data(), sizes.size()) {}

  int dim() const { return dim_; }                                     ///< number of dimensions
  std::size_t size() const { return static_cast<std::size_t>(dim_); }  ///< dim(), as containers name it
  bool empty() const { return dim_ == 0; }                             ///< 0-d: no dimensions

  std::int64_t operator[](std::size_t dim) const { return sizes_[dim]; }  ///< 0 <= dim < size(), not checked
  std::int64_t& operator[](std::size_t dim) { return sizes_[dim]; }
  const std::int64_t* begin() const { return sizes_; }       ///< iterates over the sizes, first dimension first
  const std::int64_t* end() const { return sizes_ + dim_; }  ///< past the last size
  std::int64_t* begin() { return sizes_; }                   ///< to change the sizes
  std::int64_t* end() { return sizes_ + dim_; }              ///< past the last size
  std::int64_t front() const { return sizes_[0]; }           ///< the first size; not of a 0-d shape
  std::int64_t back() const { return sizes_[dim_ - 1]; }     ///< the last size; not of a 0-d shape

  /// Throws InvalidArgument beyond kMaxDims.
  void push_back(std::int64_t size);
  void insert(int position, std::int64_t size);  ///< before dimension `position`; throws as push_back
  void erase(int position);                      ///< removes dimension `position`

  /// Product of the sizes (1 for a 0-d shape). Tensors' shapes are checked against overflow at construction.
  std::int64_t numel() const {
    std::int64_t product = 1;
    for (int i = 0; i < dim_; ++i) product *= sizes_[i];
    return product;
  }

  /// "(2, 3)", "(5,)" is written "(5)", 0-d is "()".
  std::string to_string() const;
  /// Writes to_string().
  friend std::ostream& operator<<(std::ostream& stream, const Shape& shape);

  /// True if the numbers of dimensions and all sizes are equal.
  friend bool operator==(const Shape& a, const Shape& b) {
    if (a.dim_ != b.dim_) return false;
    for (int i = 0; i < a.dim_; ++i) {
      if (a.sizes_[i] != b.sizes_[i]) return false;
    }
    return true;
  }

 private:
  Shape(const std::int64_t* sizes, std::size_t count);

  std::int64_t sizes_[kMaxDims] = {};
  std::int32_t dim_ = 0;
};

using Strides = Shape;  ///< in elements

/// Row-major strides of a shape.
Strides contiguous_strides(const Shape& shape);

/// The product of the sizes; throws InvalidArgument, naming `op`, for a negative size or a product past 2^59.
std::int64_t checked_numel(const char* op, const Shape& shape);

/// `dim`, counted from the end if negative; throws InvalidArgument, naming `op`, outside [-dims, dims).
int wrap_dim(const char* op, std::int64_t dim, int dims);

/// Sets `out` to the shape that both broadcast to by NumPy's rule; returns false if they do not broadcast.
bool try_broadcast(const Shape& a, const Shape& b, Shape* out);
/// Returns that shape; throws InvalidArgument naming `op` if they do not broadcast.
Shape broadcast_shapes(const char* op, const Shape& a, const Shape& b);

}  // namespace lockstep
