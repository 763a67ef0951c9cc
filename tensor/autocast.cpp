#include "lockstep/tensor/autocast.h"

#include "lockstep/base/check_internal.h"

namespace lockstep {

namespace {
constinit thread_local std::optional<DType> autocast_mode;
}  // namespace

std::optional<DType> autocast_dtype() { return autocast_mode; }

AutocastGuard::AutocastGuard(DType dtype, bool enabled)
    : AutocastGuard(enabled ? std::optional(dtype) : std::nullopt) {}

AutocastGuard::AutocastGuard(std::optional<DType> mode) : previous_(autocast_mode) {
  LOCKSTEP_CHECK(!mode || *mode == kBFloat16 || *mode == kFloat16,
                 "AutocastGuard: dtype is {}, expected bf16 or f16; to turn autocast off, pass enabled = false",
                 name(*mode));
  autocast_mode = mode;
}

AutocastGuard::~AutocastGuard() { autocast_mode = previous_; }

}  // namespace lockstep
