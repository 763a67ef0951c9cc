// Deadlines by the steady clock. A process that was stopped (SIGSTOP, a suspended laptop) gets the lost time back: its
// peers have not had a chance to arrive meanwhile, as far as it can tell.
#pragma once

#include <algorithm>
#include <chrono>

#include "lockstep/tensor/error.h"

namespace lockstep::parallel {

inline constexpr std::chrono::milliseconds kSlice{25};     // the longest wait before looking around for lost ranks
inline constexpr std::chrono::milliseconds kAttempt{100};  // what a single attempt gets even where time is almost up

class Deadline {
 public:
  using Clock = std::chrono::steady_clock;
  explicit Deadline(std::chrono::milliseconds timeout)
      : end_(Clock::now() + std::min<std::chrono::milliseconds>(timeout, std::chrono::hours(24 * 365))),
        looked_(Clock::now()) {}

  bool passed() { return look() >= end_; }
  // After waits of at most this long that had deadlines of their own: what went beyond them was a pause, the rest not.
  void waited(std::chrono::milliseconds at_most) { look(at_most); }
  std::chrono::milliseconds left() {
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(end_ - look());
    return std::max(left, std::chrono::milliseconds(0));
  }
  // How long to wait before looking again; call it once a slice.
  std::chrono::milliseconds slice() {
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(end_ - look());
    return std::clamp(left, std::chrono::milliseconds(1), kSlice);
  }

 private:
  Clock::time_point look(std::chrono::milliseconds expected = kSlice) {
    const Clock::time_point now = Clock::now();
    if (now - looked_ > expected + std::chrono::seconds(1)) end_ += now - looked_;  // we were stopped
    looked_ = now;
    return now;
  }
  Clock::time_point end_, looked_;
};

}  // namespace lockstep::parallel
