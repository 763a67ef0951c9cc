// Raw operations that are computed on the CPU, one element after another (statistics.cpp); tensors of other devices are
// copied.
#pragma once

#include "lockstep/tensor/tensor.h"

namespace lockstep::raw {

// out[0] = b[0] and out[i] = a[i] out[i - 1] + b[i] along `dim`, from the end if `reverse`: in f64 for f32 and f64, or in
// i64. a and b have one shape and dtype.
Tensor recurrence(const Tensor& a, const Tensor& b, int dim, bool reverse);
// How many elements lie in each of `bins` equal parts of [min, max]; f32 or f64.
Tensor histogram(const Tensor& x, std::int64_t bins, double min, double max);

}  // namespace lockstep::raw
