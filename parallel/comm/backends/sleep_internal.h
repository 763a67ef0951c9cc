// Waiting for another rank: a spinning loop, and a sleep that cannot miss its wake-up.
#pragma once

#include <sched.h>

#include <chrono>

#include "lockstep/parallel/comm/backends/control_internal.h"

namespace lockstep::parallel {

// A wait that checks again and again, up to `turns` times. Ends earlier if other processes use the cores: each yield
// then costs a time slice of several milliseconds.
class Spin {
 public:
  explicit Spin(int turns) : turns_(turns) {}

  // Pauses before the next check. Returns false if the wait should sleep instead.
  bool next() {
    if (turn_ >= turns_) return false;
    // Yields the core now and then, because the rank that is waited for may need it.
    if (++turn_ > 200 && turn_ % 50 == 0 && !yield()) return false;
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
};

// During its lifetime every rank that changes shared state increments `events` and wakes this rank. Check the awaited
// condition again before `sleep`, which returns immediately if there was an event since construction.
class Sleeper {
 public:
  explicit Sleeper(ControlHeader& header) : header_(header) {
    header_.sleepers.fetch_add(1, std::memory_order_seq_cst);
    seen_ = header_.events.load(std::memory_order_seq_cst);
    std::atomic_thread_fence(std::memory_order_seq_cst);  // later loads follow this one
  }
  ~Sleeper() { header_.sleepers.fetch_sub(1, std::memory_order_seq_cst); }
  Sleeper(const Sleeper&) = delete;
  Sleeper& operator=(const Sleeper&) = delete;
  void sleep(std::chrono::milliseconds longest);

 private:
  ControlHeader& header_;
  std::uint32_t seen_;
};

// Wakes all sleeping ranks, in any process. Call it after a change to the shared state.
void wake_sleepers(ControlHeader& header);

}  // namespace lockstep::parallel
