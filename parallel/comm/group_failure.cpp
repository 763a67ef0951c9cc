#include "lockstep/parallel/comm/group_failure_internal.h"

#include <algorithm>

#include <fmt/format.h>

namespace lockstep::parallel {

void GroupFailure::raise() const {
  if (late_) throw CommTimeout(text_);
  throw CommError(text_);
}

void GroupFailure::check_usable(const Call& call) const {
  if (*this) GroupFailure(fmt::format("{}: the group has failed before: {}", call.describe(), text_), late_).raise();
}

std::string printable(std::span<const char> text) {
  std::string shown(text.begin(), std::ranges::find(text, '\0'));
  std::ranges::replace_if(
      shown, [](char c) { return c < ' ' || c > '~'; }, '?');
  return shown;
}

std::string first_line(std::string_view text, std::size_t size) {
  constexpr std::string_view kGap = " ... ";
  text = text.substr(0, text.find('\n'));
  if (text.size() <= size) return std::string(text);
  const std::size_t head = size / 3, tail = size - head - kGap.size();
  return fmt::format("{}{}{}", text.substr(0, head), kGap, text.substr(text.size() - tail));
}

std::string poison_text(Poison reason, const std::string& culprit, const std::string& what) {
  switch (reason) {
    case Poison::kLost:
      return fmt::format("{} is gone{}{}", culprit, what.empty() ? "" : ": ", what);
    case Poison::kLeft:
    case Poison::kLeftByError:
      return fmt::format("{} has left the group", culprit);
    case Poison::kLate:
      return fmt::format("{} did not arrive in time, as another rank reports", culprit);
    case Poison::kDisagreed:
      return fmt::format("ranks disagree: {}, as another rank reports",
                         what.empty() ? culprit + " called another operation" : what);
    case Poison::kFailed:
      return fmt::format("{} has failed{}{}", culprit, what.empty() ? "" : ": ", what);
    default:
      return fmt::format("the group has failed because of {}", culprit);
  }
}

std::string not_complete(const Call& call, std::chrono::milliseconds timeout, const std::string& why) {
  return fmt::format("{}: not complete after {} ms: {}", call.describe(), timeout.count(), why);
}

}  // namespace lockstep::parallel
