/// \file
/// Functions that create tensors. All take TensorOptions: `.dtype .device .requires_grad`.
#pragma once

#include <concepts>
#include <cstdint>
#include <initializer_list>
#include <span>
#include <string>
#include <type_traits>
#include <vector>

#include "lockstep/tensor/tensor.h"

namespace lockstep {

Tensor empty(const Shape& shape, const TensorOptions& options = {});  ///< uninitialised
Tensor zeros(const Shape& shape, const TensorOptions& options = {});  ///< filled with 0
Tensor ones(const Shape& shape, const TensorOptions& options = {});   ///< filled with 1
/// Filled with `value`. The default dtype is that of the value (f32, i64 or bool).
Tensor full(const Shape& shape, const Scalar& value, const TensorOptions& options = {});
Tensor zeros_like(const Tensor& like, const TensorOptions& options = {});  ///< dtype and device of `like` unless given
Tensor ones_like(const Tensor& like, const TensorOptions& options = {});   ///< like zeros_like, filled with 1
Tensor empty_like(const Tensor& like, const TensorOptions& options = {});  ///< like zeros_like, uninitialised
Tensor full_like(const Tensor& like, const Scalar& value, const TensorOptions& options = {});  ///< filled with `value`

/// start, start + step, ... below end. The default dtype is i64 if all three are integers, otherwise f32.
Tensor arange(const Scalar& end, const TensorOptions& options = {});
Tensor arange(const Scalar& start, const Scalar& end, const Scalar& step = 1, const TensorOptions& options = {});
inline Tensor arange(const Scalar& start, const Scalar& end, const TensorOptions& options) {
  return arange(start, end, 1, options);
}
/// `steps` evenly spaced numbers from start to end, both included.
Tensor linspace(double start, double end, std::int64_t steps, const TensorOptions& options = {});
Tensor eye(std::int64_t n, const TensorOptions& options = {});                  ///< (n, n), ones on the diagonal
Tensor eye(std::int64_t n, std::int64_t m, const TensorOptions& options = {});  ///< the same with m columns

/// Random numbers are a function of seed, micro-batch, site, call and element; see tensor/random/random.h, also for what
/// they are in layers that several ranks compute together.
Tensor rand(const Shape& shape, const TensorOptions& options = {});        ///< uniform in [0, 1)
Tensor randn(const Shape& shape, const TensorOptions& options = {});       ///< normal, mean 0, variance 1
Tensor rand_like(const Tensor& like, const TensorOptions& options = {});   ///< rand; shape, dtype and device of `like`
Tensor randn_like(const Tensor& like, const TensorOptions& options = {});  ///< randn, likewise
/// Normal numbers with this mean and standard deviation, in `shape` or in that to which the tensors broadcast. Without
/// gradient. Throws InvalidArgument if a number for the deviation is negative.
Tensor normal(double mean, double std, const Shape& shape, const TensorOptions& options = {});
Tensor normal(const Tensor& mean, double std = 1);
Tensor normal(double mean, const Tensor& std);
Tensor normal(const Tensor& mean, const Tensor& std);
/// 1 with the probability that each element of the floating-point tensor holds, otherwise 0; without gradient. Throws
/// InvalidArgument for a probability outside [0, 1]; tensors are checked on CPU devices only.
Tensor bernoulli(const Tensor& probabilities);
Tensor bernoulli(const Tensor& like, double p);  ///< 1 with probability p, in shape, dtype and device of `like`
/// Integers in [low, high), i64 unless a dtype is given.
Tensor randint(std::int64_t low, std::int64_t high, const Shape& shape, const TensorOptions& options = {});
Tensor randint(std::int64_t high, const Shape& shape, const TensorOptions& options = {});  ///< from 0 on
/// A shape is in braces: randint(1, 7) would be a range without a shape.
template <std::integral I>
Tensor randint(std::int64_t high, I size) = delete;
Tensor randperm(std::int64_t n, const TensorOptions& options = {});  ///< a permutation of 0..n-1, i64
/// Samples class indices with probabilities proportional to the weights, which need not add up to 1: (classes) ->
/// (num_samples), or (rows, classes) -> (rows, num_samples), i64. Without replacement the samples of a row are distinct.
/// Throws InvalidArgument if a weight is negative or not finite, a row's sum is 0 or not finite, num_samples < 1, or,
/// without replacement, fewer than num_samples weights are positive.
Tensor multinomial(const Tensor& weights, std::int64_t num_samples, bool replacement = false);

namespace detail {
Tensor from_values(const void* values, const Shape& shape, DType dtype, const TensorOptions& options);
void require_fits(const Scalar& literal, DType dtype);

// The dtype of a literal: int gives i64, double gives f32, as in PyTorch.
template <class T>
inline constexpr DType literal_dtype = std::is_same_v<T, bool>           ? kBool
                                       : std::is_floating_point_v<T>     ? kFloat32
                                       : std::is_same_v<T, std::uint8_t> ? kUInt8
                                                                         : kInt64;

// Collects rows of numbers in one array of double or int64_t. Throws InvalidArgument if the rows differ in length.
template <class T>
class Literal {
 public:
  using Wide = std::conditional_t<std::is_floating_point_v<T>, double, std::int64_t>;
  void add(std::initializer_list<T> row) {
    if (rows_++ == 0) length_ = row.size();
    if (row.size() != length_)
      throw InvalidArgument("tensor: rows of different lengths: " + std::to_string(length_) + " and " +
                            std::to_string(row.size()));
    for (T value : row) values_.push_back(static_cast<Wide>(value));
  }
  Tensor make(const Shape& shape, TensorOptions options) const {
    if (!options.dtype) options.dtype = literal_dtype<T>;
    for (Wide value : values_) require_fits(value, *options.dtype);
    return from_values(values_.data(), shape, dtype_of<Wide>, options);
  }

 private:
  std::vector<Wide> values_;
  std::size_t rows_ = 0, length_ = 0;
};
}  // namespace detail

/// A tensor from literals: tensor(3.0), tensor({1, 2, 3}), tensor({{1.0, 2.0}, {3.0, 4.0}}), at most three levels.
/// Integers give i64, floats f32, bools bool, unless a dtype is given. Throws InvalidArgument for a number outside
/// the range of the dtype.
template <class T>
requires std::is_arithmetic_v<T> Tensor tensor(T value, const TensorOptions& options = {}) {
  detail::Literal<T> literal;
  literal.add({value});
  return literal.make({}, options);
}
/// 1-D: (values).
template <class T>
requires std::is_arithmetic_v<T> Tensor tensor(std::initializer_list<T> values, const TensorOptions& options = {}) {
  detail::Literal<T> literal;
  literal.add(values);
  return literal.make({static_cast<std::int64_t>(values.size())}, options);
}
/// 2-D: (rows, columns). Throws InvalidArgument if rows differ in length.
template <class T>
requires std::is_arithmetic_v<T> Tensor tensor(std::initializer_list<std::initializer_list<T>> rows,
                                               const TensorOptions& options = {}) {
  detail::Literal<T> literal;
  for (const auto& row : rows) literal.add(row);
  const auto columns = rows.size() ? static_cast<std::int64_t>(rows.begin()->size()) : 0;
  return literal.make({static_cast<std::int64_t>(rows.size()), columns}, options);
}
/// 3-D: (planes, rows, columns). Throws InvalidArgument if planes or rows differ in size.
template <class T>
requires std::is_arithmetic_v<T> Tensor tensor(
    std::initializer_list<std::initializer_list<std::initializer_list<T>>> planes, const TensorOptions& options = {}) {
  detail::Literal<T> literal;
  std::int64_t rows = 0, columns = 0;
  if (planes.size()) rows = static_cast<std::int64_t>(planes.begin()->size());
  for (const auto& plane : planes) {
    if (static_cast<std::int64_t>(plane.size()) != rows) throw InvalidArgument("tensor: planes of different heights");
    for (const auto& row : plane) {
      columns = static_cast<std::int64_t>(planes.begin()->begin()->size());
      literal.add(row);
    }
  }
  return literal.make({static_cast<std::int64_t>(planes.size()), rows, columns}, options);
}
/// Copies a vector. The default dtype is that of a literal: a vector of doubles gives f32.
template <class T>
requires std::is_arithmetic_v<T> Tensor tensor(const std::vector<T>& values, TensorOptions options = {}) {
  if (!options.dtype) options.dtype = detail::literal_dtype<T>;
  return detail::from_values(values.data(), {static_cast<std::int64_t>(values.size())}, dtype_of<T>, options);
}

/// A row-major tensor on the caller's memory, without a copy. The memory must outlive all tensors that view it. Do not
/// write to a tensor on a span of const.
Tensor from_memory(void* data, const Shape& shape, DType dtype, std::size_t bytes);
template <class T>
Tensor from_memory(std::span<T> memory, const Shape& shape) {
  using Element = std::remove_const_t<T>;
  return from_memory(const_cast<Element*>(memory.data()), shape, dtype_of<Element>, memory.size_bytes());
}
/// The same for a span of static extent.
template <class T, std::size_t N>
requires(N != std::dynamic_extent) Tensor from_memory(std::span<T, N> memory, const Shape& shape) {
  return from_memory(std::span<T>(memory), shape);
}

/// The same by LibTorch's name, without a check of the memory's size: from_blob(image.data, {3, 32, 32}, kUInt8).
inline Tensor from_blob(void* data, const Shape& shape, DType dtype = kFloat32) {
  return from_memory(data, shape, dtype,
                     static_cast<std::size_t>(checked_numel("from_blob", shape)) * item_size(dtype));
}

// --- LibTorch's last argument: zeros({2, 3}, kInt64), randn({2, 3}, x.device()), dtype(kInt64).device(kCUDA) -----------
inline Tensor empty(const Shape& shape, const TensorOption& option) { return empty(shape, option.options()); }
inline Tensor zeros(const Shape& shape, const TensorOption& option) { return zeros(shape, option.options()); }
inline Tensor ones(const Shape& shape, const TensorOption& option) { return ones(shape, option.options()); }
inline Tensor rand(const Shape& shape, const TensorOption& option) { return rand(shape, option.options()); }
inline Tensor randn(const Shape& shape, const TensorOption& option) { return randn(shape, option.options()); }
inline Tensor full(const Shape& shape, const Scalar& value, const TensorOption& option) {
  return full(shape, value, option.options());
}
inline Tensor zeros_like(const Tensor& like, const TensorOption& option) { return zeros_like(like, option.options()); }
inline Tensor ones_like(const Tensor& like, const TensorOption& option) { return ones_like(like, option.options()); }
inline Tensor empty_like(const Tensor& like, const TensorOption& option) { return empty_like(like, option.options()); }
inline Tensor rand_like(const Tensor& like, const TensorOption& option) { return rand_like(like, option.options()); }
inline Tensor randn_like(const Tensor& like, const TensorOption& option) { return randn_like(like, option.options()); }
inline Tensor full_like(const Tensor& like, const Scalar& value, const TensorOption& option) {
  return full_like(like, value, option.options());
}
inline Tensor arange(const Scalar& end, const TensorOption& option) { return arange(end, option.options()); }
inline Tensor arange(const Scalar& start, const Scalar& end, const TensorOption& option) {
  return arange(start, end, option.options());
}
inline Tensor arange(const Scalar& start, const Scalar& end, const Scalar& step, const TensorOption& option) {
  return arange(start, end, step, option.options());
}
inline Tensor linspace(double start, double end, std::int64_t steps, const TensorOption& option) {
  return linspace(start, end, steps, option.options());
}
inline Tensor eye(std::int64_t n, const TensorOption& option) { return eye(n, option.options()); }
inline Tensor eye(std::int64_t n, std::int64_t m, const TensorOption& option) { return eye(n, m, option.options()); }
inline Tensor normal(double mean, double std, const Shape& shape, const TensorOption& option) {
  return normal(mean, std, shape, option.options());
}
inline Tensor randint(std::int64_t low, std::int64_t high, const Shape& shape, const TensorOption& option) {
  return randint(low, high, shape, option.options());
}
inline Tensor randint(std::int64_t high, const Shape& shape, const TensorOption& option) {
  return randint(high, shape, option.options());
}
inline Tensor randperm(std::int64_t n, const TensorOption& option) { return randperm(n, option.options()); }
template <class T>
requires std::is_arithmetic_v<T> Tensor tensor(T value, const TensorOption& option) {
  return tensor(value, option.options());
}
template <class T>
requires std::is_arithmetic_v<T> Tensor tensor(std::initializer_list<T> values, const TensorOption& option) {
  return tensor(values, option.options());
}
template <class T>
requires std::is_arithmetic_v<T> Tensor tensor(std::initializer_list<std::initializer_list<T>> rows,
                                               const TensorOption& option) {
  return tensor(rows, option.options());
}
template <class T>
requires std::is_arithmetic_v<T> Tensor tensor(const std::vector<T>& values, const TensorOption& option) {
  return tensor(values, option.options());
}

}  // namespace lockstep
