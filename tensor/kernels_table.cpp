// The table of one level or device. A kernel in ops.def without a definition is a link error here.
#include "lockstep/tensor/level_internal.h"

namespace lockstep::LOCKSTEP_KERNELS {

const KernelTable kTable = {
#define KERNEL(name, signature) .name = &LOCKSTEP_KERNELS::name,
#include "lockstep/tensor/ops.def"
#undef KERNEL
#define POINTWISE(name, functor, low, high)                                                   \
  .name = &LOCKSTEP_KERNELS::name, .name##_derivative = &LOCKSTEP_KERNELS::name##_derivative, \
  .name##_second_derivative = &LOCKSTEP_KERNELS::name##_second_derivative,
#include "lockstep/tensor/pointwise.def"
#undef POINTWISE
};

}  // namespace lockstep::LOCKSTEP_KERNELS
