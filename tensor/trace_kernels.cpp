#include "lockstep/tensor/trace_kernels_internal.h"

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
#define POINTWISE(name, functor, low, high)                     \
  constexpr char k_##name[] = #name;                            \
  constexpr char k_##name##_derivative[] = #name " derivative"; \
  constexpr char k_##name##_second_derivative[] = #name " second derivative";
#include "lockstep/tensor/ops.def"
#include "lockstep/tensor/pointwise.def"
#undef KERNEL
#undef POINTWISE

#define ENTRY(name) .name = &Traced<&KernelTable::name, k_##name>::run,
constexpr KernelTable kTracedTable = {
#define KERNEL(name, signature) ENTRY(name)
#include "lockstep/tensor/ops.def"
#undef KERNEL
#define POINTWISE(name, functor, low, high) ENTRY(name) ENTRY(name##_derivative) ENTRY(name##_second_derivative)
#include "lockstep/tensor/pointwise.def"
#undef POINTWISE
};
#undef ENTRY

}  // namespace

const KernelTable& traced_cpu_kernels() { return kTracedTable; }

}  // namespace lockstep
