// Deadlines by the steady clock. If the process was stopped (SIGSTOP, a suspended laptop), the deadline moves by the
// length of the stop: the peers may have been stopped as well and had no chance to arrive.
#pragma once

#include <algorithm>
#include <chrono>

#include "lockstep/base/error.h"

namespace lockstep::parallel {

inline constexpr std::chrono::milliseconds kSlice{25};     // longest wait between two liveness checks
inline constexpr std::chrono::milliseconds kAttempt{100};  // minimum time of one attempt, even near the deadline

class Deadline {
 public:
  using Clock = std::chrono::steady_clock;
  explicit Deadline(std::chrono::milliseconds timeout)
      : end_(Clock::now() + std::min<std::chrono::milliseconds>(timeout, std::chrono::hours(24 * 365))),
        checked_(Clock::now()) {}

  bool passed() { return update() >= end_; }
  // Call after waits of at most `at_most` with deadlines of their own: only the time beyond `at_most` can be a stop.
  void waited(std::chrono::milliseconds at_most) { update(at_most); }
  std::chrono::milliseconds left() {
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(end_ - update());
    return std::max(left, std::chrono::milliseconds(0));
  }
  // How long to wait until the next check. Call it once per wait.
  std::chrono::milliseconds slice() {
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(end_ - update());
    return std::clamp(left, std::chrono::milliseconds(1), kSlice);
  }

 private:
  Clock::time_point update(std::chrono::milliseconds expected = kSlice) {
    const Clock::time_point now = Clock::now();
    if (now - checked_ > expected + std::chrono::seconds(1)) end_ += now - checked_;  // the process was stopped
    checked_ = now;
    return now;
  }
  Clock::time_point end_, checked_;
};

}  // namespace lockstep::parallel
