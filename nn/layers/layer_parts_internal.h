// Parts of several layers: initial values and shapes.
#pragma once

#include <cmath>

#include "lockstep/nn/initial_internal.h"

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

}  // namespace lockstep::nn
