// Waiting for another thread or process by checking again and again, for some microseconds.
#pragma once

#include <sched.h>

#include <chrono>

namespace lockstep {

// A wait of up to `turns` checks. With `yields` it yields the core now and then, because the peer that is waited for may
// need it, and ends earlier if other processes use the cores: each yield then costs a time slice of milliseconds.
class Spin {
 public:
  static constexpr int kTurns = 2000;  // about 20 us: a running peer that is about to finish does so within them

  Spin(int turns, bool yields) : turns_(turns), yields_(yields) {}

  // Pauses before the next check. Returns false if the wait should sleep instead.
  bool next() {
    if (turn_ >= turns_) return false;
    if (++turn_ > 200 && turn_ % 50 == 0 && yields_ && !yield()) return false;
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    asm volatile("yield");
#endif
    return true;
  }

 private:
  static constexpr std::chrono::milliseconds kLongest{1};

  // Returns whether the core came back soon.
  bool yield() {
    const auto before = std::chrono::steady_clock::now();
    sched_yield();
    return std::chrono::steady_clock::now() - before < kLongest;
  }

  int turns_, turn_ = 0;
  bool yields_;
};

}  // namespace lockstep
