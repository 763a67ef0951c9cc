// Sleeping until another rank changes the shared state, without missing its wake-up.
#pragma once

#include <chrono>

#include "lockstep/parallel/comm/backends/control_internal.h"

namespace lockstep::parallel {

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
