// Kernels that write themselves into the trace. Not installed.
#pragma once

#include "lockstep/tensor/kernels_internal.h"

namespace lockstep {

// The kernels of CPU devices ...
const KernelTable& cpu_kernels();
// ... and the same with an event around each.
const KernelTable& traced_cpu_kernels();

}  // namespace lockstep
