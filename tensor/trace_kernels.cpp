// CPU kernels that record trace events.
#include "lockstep/tensor/kernels_internal.h"
#include "lockstep/tensor/trace.h"

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
#include "lockstep/tensor/ops.def"
#undef KERNEL

constexpr KernelTable kTracedTable = {
#define KERNEL(name, signature) .name = &Traced<&KernelTable::name, k_##name>::run,
#include "lockstep/tensor/ops.def"
#undef KERNEL
};

}  // namespace

const KernelTable& traced_cpu_kernels() { return kTracedTable; }

}  // namespace lockstep
