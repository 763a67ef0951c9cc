#include "lockstep/tensor/tf32.h"

#include <atomic>

namespace lockstep {
namespace {

constinit std::atomic<bool> allowed{false};

}  // namespace

void allow_tf32(bool allow) { allowed.store(allow, std::memory_order_relaxed); }
bool tf32_allowed() { return allowed.load(std::memory_order_relaxed); }

}  // namespace lockstep
