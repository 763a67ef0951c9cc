#include <utility>

#include "lockstep/parallel/comm/backend_internal.h"
#include "lockstep/parallel/comm/progress_internal.h"

namespace lockstep::parallel {
namespace {
constinit thread_local ProgressGuard* innermost = nullptr;
}  // namespace

ProgressGuard::ProgressGuard(const ProcessGroup* group)
    : backend_(group ? group->backend_.get() : nullptr), outer_(std::exchange(innermost, this)) {}
ProgressGuard::~ProgressGuard() { innermost = outer_; }

bool ProgressGuard::progress() {
  bool any = false;
  for (const ProgressGuard* guard = innermost; guard; guard = guard->outer_)
    any = (guard->backend_ && guard->backend_->progress()) || any;
  return any;
}

}  // namespace lockstep::parallel
