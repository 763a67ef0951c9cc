// How layers with a weight begin. Not installed.
#pragma once

#include <cmath>

#include "lockstep/tensor/random_ops_internal.h"

namespace lockstep::nn {

// U(-1/sqrt(in), 1/sqrt(in)): what kaiming_uniform_ with a = sqrt(5) gives for a weight of fan-in `in`.
inline Tensor uniform_by_fan_in(const Shape& shape, std::int64_t in) {
  const double bound = in > 0 ? 1.0 / std::sqrt(static_cast<double>(in)) : 0.0;
  return raw::uniform(shape, -bound, bound, random::Stream::kInit);
}

}  // namespace lockstep::nn
