// Chooses the level of the CPU kernels, once, by the processor's instruction sets (or by LOCKSTEP_ISA).
#include <string_view>

#include "lockstep/base/byte_reader_internal.h"
#include "lockstep/base/check_internal.h"
#include "lockstep/base/environment_internal.h"
#include "lockstep/base/threads.h"
#include "lockstep/base/trace.h"
#include "lockstep/tensor/cpu/onednn_internal.h"
#include "lockstep/tensor/kernels/kernels_internal.h"
#include "lockstep/tensor/memory/accelerator_internal.h"

namespace lockstep {

#ifndef LOCKSTEP_LEVELS  // cmake/library.cmake defines it, the best level first, unless the only level is this machine's
#define LOCKSTEP_LEVELS(X) X(native)
#endif

#define DECLARE(level)             \
  namespace cpu::level {           \
  extern const KernelTable kTable; \
  }
LOCKSTEP_LEVELS(DECLARE)
#undef DECLARE

namespace {

struct Level {
  const char* name;
  const KernelTable* table;
  bool supported;
};

// True if the processor supports the level and the operating system saves its wide registers.
bool supports(std::string_view level) {
#ifdef __x86_64__
  __builtin_cpu_init();
  const bool v3 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("bmi2");
  if (level == "v4")
    return v3 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512cd") && __builtin_cpu_supports("avx512dq") &&
           __builtin_cpu_supports("avx512vl");
  if (level == "v3") return v3;
#endif
  return !level.empty();
}

Level choose() {
  num_threads();  // throws for an invalid LOCKSTEP_NUM_THREADS even if no operation uses the pool
  const std::optional<std::string> wanted = environment("LOCKSTEP_ISA");
  const Level levels[] = {
#define ENTRY(level) {#level, &cpu::level::kTable, supports(#level)},
      LOCKSTEP_LEVELS(ENTRY)
#undef ENTRY
  };
  for (const Level& level : levels) {
    if (wanted ? *wanted == level.name : level.supported) {
      if (!level.supported)
        throw DeviceError(fmt::format("LOCKSTEP_ISA: this processor does not support {}; unset it", level.name));
      return level;
    }
  }
  throw DeviceError(wanted ? fmt::format("LOCKSTEP_ISA is {}, which is not in this build; unset it", in_quotes(*wanted))
                           : "cpu: this processor is older than x86-64-v2, which Lockstep needs");
}

const Level& chosen() {
  static const Level level = choose();
  return level;
}

}  // namespace

const KernelTable& kernels(Device device) {
  if (!device.is_cpu()) [[unlikely]]
    return accelerator(device).kernels(device.index());
  if (detail::trace_level.load(std::memory_order_relaxed) == 2) [[unlikely]]
    return traced_cpu_kernels();
  return *chosen().table;
}

const KernelTable& cpu_kernels() { return *chosen().table; }

const char* cpu_level() { return chosen().name; }
std::string cpu_description() {
  std::int64_t workspace = 0;
  cpu_kernels().gemm_workspace({}, kBFloat16, &workspace);
  return fmt::format("{}, {}{}", cpu_level(), cpu::onednn_version(), workspace < 0 ? "" : ", bf16 products");
}

}  // namespace lockstep
