/// \file
/// Order statistics, counts and cumulative products. Rules and errors as in functions.h.
#pragma once

#include <cstdint>
#include <optional>
#include <utility>

#include "lockstep/tensor/tensor.h"

namespace lockstep {

/// The element in the middle of all, of an even number the lower one; NaN wins. Equal elements share the gradient. Throws
/// InvalidArgument for no elements.
Tensor median(const Tensor& x);
/// The medians along a dimension and their i64 indices; NaN wins. Of equal elements, the chosen one gets the gradient.
std::pair<Tensor, Tensor> median(const Tensor& x, std::int64_t dim, bool keepdim = false);

/// How quantile computes a value between two elements: from both in proportion, the smaller, the larger, the nearer (of
/// equally near ones that with the even index), or their mean.
enum class Interpolation : std::uint8_t { kLinear, kLower, kHigher, kNearest, kMidpoint };
/// Options of quantile.
struct QuantileOptions {
  std::optional<std::int64_t> dim = std::nullopt;        ///< without: over all elements
  bool keepdim = false;                                  ///< keep the reduced dimensions with size 1
  Interpolation interpolation = Interpolation::kLinear;  ///< between two elements
};
/// The value at position q (n - 1) of the n sorted elements, f32 or f64. NaN wins. Throws InvalidArgument for q outside
/// [0, 1] and for no elements.
Tensor quantile(const Tensor& x, double q, const QuantileOptions& options = {});
/// The same for each element of q, of x's dtype: 0-d or 1-D, which the result has as its first dimension.
Tensor quantile(const Tensor& x, const Tensor& q, const QuantileOptions& options = {});

/// The result of unique.
struct Unique {
  Tensor values;   ///< the different elements, sorted
  Tensor inverse;  ///< of x's shape, i64: the position of each element in `values`
  Tensor counts;   ///< i64: how often each value occurs
};
/// The different elements of x, without gradient. Each NaN is a value of its own.
Unique unique(const Tensor& x);

/// The products of the elements up to each one along `dim`, in f64 or i64 rounded to x's dtype; bool and integers give
/// i64. The gradient divides by no element, so it is exact for zeros. Computed on the CPU, one element after another.
Tensor cumprod(const Tensor& x, std::int64_t dim);

/// How many elements lie in each of `bins` equal parts of [min, max], in x's dtype, floating point; the last part includes
/// max, and other elements do not count. If min equals max, they are those of x. Computed on the CPU. Throws
/// InvalidArgument for bins below 1, min above max, and a range that is not finite.
Tensor histc(const Tensor& x, std::int64_t bins = 100, double min = 0, double max = 0);

/// out[i]: how often x, 1-D integers of at least 0, has the value i, i64; or the sum of the weights of these elements,
/// added in order in f32 for f32 and otherwise in f64. At least `minlength` elements.
Tensor bincount(const Tensor& x, const Tensor& weights = {}, std::int64_t minlength = 0);

}  // namespace lockstep
