// The table of one level or device. A kernel in ops.def without a definition is a link error here.
#include "lockstep/tensor/kernels/level_internal.h"

namespace lockstep::LOCKSTEP_KERNELS {

const KernelTable kTable = {
#define KERNEL(name, signature) .name = &LOCKSTEP_KERNELS::name,
#include "lockstep/tensor/kernels/ops.def"
#undef KERNEL
};

}  // namespace lockstep::LOCKSTEP_KERNELS
