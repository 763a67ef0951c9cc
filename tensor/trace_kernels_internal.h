// CPU kernels that record trace events. Not installed.
#pragma once

#include "lockstep/tensor/kernels_internal.h"

namespace lockstep {

// The kernels of CPU devices, without trace events.
const KernelTable& cpu_kernels();
// The same kernels, each recording an event.
const KernelTable& traced_cpu_kernels();

}  // namespace lockstep
