// Waiting for another rank: a spinning loop, and a sleep that cannot miss its wake-up.
#pragma once

#include <sched.h>

#include <chrono>

#include "lockstep/parallel/comm/backends/control_internal.h"
#include "lockstep/parallel/comm/backends/futex_internal.h"

namespace lockstep::parallel {

// A wait that checks again and again: `for (Spin spin(turns); spin.next();)`. Ends after `turns` turns, or earlier if
// other processes use the cores: each yield then costs a time slice of several milliseconds.
class Spin {
 public:
  explicit Spin(int turns) : turns_(turns) {}

  // Returns whether to check once more, after a pause.
  bool next() {
    if (turn_ >= turns_) return false;
    if (turn_++ == 0) return true;
    // Yields the core now and then, because the rank that is waited for may need it.
    if (turn_ > 200 && turn_ % 50 == 0 && !yield()) return false;
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
  void sleep(std::chrono::milliseconds longest) { futex_wait(header_.events, seen_, longest); }

 private:
  ControlHeader& header_;
  std::uint32_t seen_;
};

// During its lifetime this rank may publish which rank it waits for.
class WaitingSign {
 public:
  explicit WaitingSign(RankState& own) : own_(own) {}
  ~WaitingSign() { own_.waits_for.store(0, std::memory_order_relaxed); }
  WaitingSign(const WaitingSign&) = delete;
  WaitingSign& operator=(const WaitingSign&) = delete;

 private:
  RankState& own_;
};

}  // namespace lockstep::parallel
