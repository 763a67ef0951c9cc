// CPU kernels that record trace events.
#include "lockstep/base/trace.h"
#include "lockstep/tensor/kernels/kernels_internal.h"
#include "lockstep/tensor/ops/optim_ops_internal.h"

namespace lockstep {
namespace {

template <auto kKernel, const char* kName>
struct Traced;
template <class... Args, void (*KernelTable::*kKernel)(Args...), const char* kName>
struct Traced<kKernel, kName> {
  static void run(Args... args) {
    const TraceSpan span(TraceKind::kKernel, kName);
    (cpu_kernels().*kKernel)(args...);
  }
};

#define KERNEL(name, signature) constexpr char k_##name[] = #name;
#include "lockstep/tensor/kernels/ops.def"
#undef KERNEL

constexpr KernelTable kTracedTable = {
#define KERNEL(name, signature) .name = &Traced<&KernelTable::name, k_##name>::run,
#include "lockstep/tensor/kernels/ops.def"
#undef KERNEL
};

}  // namespace

const KernelTable& traced_cpu_kernels() { return kTracedTable; }

}  // namespace lockstep
