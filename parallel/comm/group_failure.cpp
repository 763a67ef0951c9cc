#include "lockstep/parallel/comm/group_failure_internal.h"

#include <fmt/format.h>

namespace lockstep::parallel {

void GroupFailure::raise() const {
  if (late_) throw CommTimeout(text_);
  throw CommError(text_);
}

void GroupFailure::check_usable(const Call& call) const {
  if (*this) GroupFailure(fmt::format("{}: the group has failed before: {}", call.describe(), text_), late_).raise();
}

std::string not_complete(const Call& call, std::chrono::milliseconds timeout, const std::string& why) {
  return fmt::format("{}: not complete after {} ms: {}", call.describe(), timeout.count(), why);
}

void append_rank(std::string& list, int rank, const char* what) {
  list += fmt::format("{}rank {} {}", list.empty() ? "" : ", ", rank, what);
}

}  // namespace lockstep::parallel
