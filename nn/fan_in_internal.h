// Initial values of layers with a weight. Not installed.
#pragma once

#include <cmath>

#include "lockstep/tensor/random_ops_internal.h"

namespace lockstep::nn {

// U(-1/sqrt(in), 1/sqrt(in)), which equals kaiming_uniform_ with a = sqrt(5) for a weight of fan-in `in`.
inline Tensor uniform_by_fan_in(const Shape& shape, std::int64_t in) {
  const double bound = in > 0 ? 1.0 / std::sqrt(static_cast<double>(in)) : 0.0;
  return raw::uniform(shape, -bound, bound, random::Stream::kInit);
}

}  // namespace lockstep::nn
