// Parts of several layers: initial values, shapes and embeddings.
#pragma once

#include <cmath>
#include <optional>

#include "lockstep/nn/initial_internal.h"
#include "lockstep/nn/parameter.h"

namespace lockstep::nn {

// U(-1/sqrt(in), 1/sqrt(in)), which equals kaiming_uniform_ with a = sqrt(5) for a weight of fan-in `in`.
inline Tensor uniform_by_fan_in(const Shape& shape, std::int64_t in) {
  const double bound = in > 0 ? 1.0 / std::sqrt(static_cast<double>(in)) : 0.0;
  return initial_uniform(shape, -bound, bound);
}

// (samples, channels, 1, ...) with the number of dimensions of x, to broadcast to x (n, channels, ...).
inline Shape channel_shape(const Tensor& x, std::int64_t channels, std::int64_t samples = 1) {
  Shape shape = x.shape();
  for (std::size_t dim = 0; dim < shape.size(); ++dim) shape[dim] = dim == 0 ? samples : dim == 1 ? channels : 1;
  return shape;
}

// The row for padding of an embedding with `n` rows; negative numbers count from the end.
std::optional<std::int64_t> padding_row(const char* layer, std::int64_t n, std::optional<std::int64_t> padding_idx);
// N(0, 1), with a row of zeros for padding.
Tensor embedding_weight(std::int64_t n, std::int64_t dim, std::optional<std::int64_t> padding);
// The rows of `weight` that the elements of `index` name, (index.numel(), dim). The row for padding gets no gradient.
Tensor embedding_rows(const char* layer, const Parameter& weight, const Tensor& index,
                      std::optional<std::int64_t> padding);

}  // namespace lockstep::nn
