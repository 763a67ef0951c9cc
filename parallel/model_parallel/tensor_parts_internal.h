// Parts of a tensor, one for each slice. All are contiguous, as are the gradients that reach them, and no gradient is added
// to zeros, which could change the sign of a zero: so the bits do not depend on the number of slices on a rank. Not
// installed.
#pragma once

#include <cstdint>
#include <vector>

#include "lockstep/tensor/tensor.h"

namespace lockstep::parallel {

// x itself, whose gradient is contiguous.
Tensor with_contiguous_gradient(const Tensor& x);
// `count` equal parts of x along `dim`.
std::vector<Tensor> split_parts(const Tensor& x, std::int64_t dim, std::int64_t count);
// The parts side by side along `dim`. They may have different sizes.
Tensor join_parts(const std::vector<Tensor>& parts, std::int64_t dim);

}  // namespace lockstep::parallel
