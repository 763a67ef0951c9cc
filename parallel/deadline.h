// Deadlines by the steady clock. A process that was stopped (SIGSTOP, a suspended laptop) gets the lost time back: its
// peers have not had a chance to arrive meanwhile, as far as it can tell. It was stopped where a wait took over a second
// longer than asked.
#pragma once

#include <algorithm>
#include <chrono>

#include "lockstep/tensor/error.h"

namespace lockstep::inline LOCKSTEP_ABI::parallel {

inline constexpr std::chrono::milliseconds kSlice{100};  // the longest wait before looking around

class Deadline {
 public:
  using Clock = std::chrono::steady_clock;
  explicit Deadline(std::chrono::milliseconds timeout)
      : end_(Clock::now() + std::min<std::chrono::milliseconds>(timeout, std::chrono::hours(24 * 365))),
        looked_(Clock::now()) {}

  bool passed() { return look() >= end_; }
  // What is left, at least a millisecond: for waits that end by themselves.
  std::chrono::milliseconds left() {
    asked_ = std::max(std::chrono::ceil<std::chrono::milliseconds>(end_ - look()), std::chrono::milliseconds(1));
    return asked_;
  }
  // How long to wait before looking again; call it once a slice.
  std::chrono::milliseconds slice() {
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(end_ - look());
    return std::clamp(left, std::chrono::milliseconds(1), kSlice);
  }

 private:
  Clock::time_point look() {
    const Clock::time_point now = Clock::now();
    if (now - looked_ > asked_ + std::chrono::seconds(1)) end_ += now - looked_;  // we were stopped
    looked_ = now;
    asked_ = kSlice;
    return now;
  }
  Clock::time_point end_, looked_;
  std::chrono::milliseconds asked_ = kSlice;  // for which the caller waits after the last look
};

}  // namespace lockstep::inline LOCKSTEP_ABI::parallel
