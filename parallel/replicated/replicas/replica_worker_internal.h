// A thread that runs tasks for its replica, one at a time. Not installed.
#pragma once

#include <atomic>
#include <cstdint>
#include <exception>
#include <thread>
#include <utility>

#include "lockstep/base/callback.h"
#include "lockstep/base/spin_internal.h"

namespace lockstep::parallel {

class ReplicaWorker {
 public:
  // `spins`: wait for tasks by spinning before sleeping, which is faster where each thread has a core.
  explicit ReplicaWorker(bool spins) : turns_(spins ? Spin::kTurns : 0), thread_([this] { loop(); }) {}
  ~ReplicaWorker() {
    change(State::kStop);
    thread_.join();
  }
  ReplicaWorker(const ReplicaWorker&) = delete;
  ReplicaWorker& operator=(const ReplicaWorker&) = delete;

  // Starts `body(replica)`. `body` must live until `wait` returns.
  void start(FunctionRef<void(int replica)>& body, int replica) {
    body_ = &body;
    replica_ = replica;
    change(State::kBusy);
  }
  // Waits for the task. Returns its exception, null if there was none.
  std::exception_ptr wait() {
    wait_while(State::kBusy);
    return std::exchange(error_, nullptr);
  }

 private:
  enum class State : std::uint32_t { kIdle, kBusy, kStop };

  void loop() {
    for (;;) {
      wait_while(State::kIdle);
      if (state_.load(std::memory_order_acquire) == State::kStop) return;
      try {
        (*body_)(replica_);
      } catch (...) {
        error_ = std::current_exception();
      }
      change(State::kIdle);
    }
  }
  void change(State state) {
    state_.store(state, std::memory_order_release);
    state_.notify_one();
  }
  void wait_while(State state) const {
    for (Spin spin(turns_, /*yields=*/false); state_.load(std::memory_order_acquire) == state;) {
      if (!spin.next()) return state_.wait(state, std::memory_order_acquire);
    }
  }

  const int turns_;
  // Hands the members below from one thread to the other.
  std::atomic<State> state_ = State::kIdle;
  FunctionRef<void(int replica)>* body_ = nullptr;
  int replica_ = 0;
  std::exception_ptr error_;
  std::thread thread_;
};

}  // namespace lockstep::parallel
