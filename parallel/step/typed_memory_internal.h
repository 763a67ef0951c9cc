// Memory that holds tensors of several dtypes and owners. Not installed.
#pragma once

#include <cstdint>

#include "lockstep/tensor/tensor.h"

namespace lockstep::parallel {

// A view of `count` elements of `memory` (u8) from byte `first` on.
Tensor typed_view(const Tensor& memory, std::int64_t first, std::int64_t count, DType dtype);
// With LOCKSTEP_FILL_BUFFERS=1 writes NaN into memory that changes its owner, so that no result can come from what was
// there before.
void fill_for_next_owner(const Tensor& memory);

}  // namespace lockstep::parallel
