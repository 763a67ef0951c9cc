// Numbered points at which a process is killed or stopped: its calls of the C library that other processes can notice,
// in program order. A slow process sleeps before each of them. tests/parallel/comm/kills.cpp interposes these functions.
#pragma once

#include <signal.h>
#include <time.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdint>

inline std::int64_t monotonic_us() {
  return std::chrono::duration_cast<std::chrono::microseconds>(std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

struct KillPoints {
  std::atomic<bool> armed{false};
  std::atomic<int> passed{0};
  int last = 0;  // the process ends before this call; 0: none
  std::atomic<std::int64_t>* killed_at = nullptr;
  int signal = SIGKILL;
  std::atomic<std::int64_t> delay_us{0};  // injected at every point of a slow process; nothing waits for it

  void arm(int at, int with, std::atomic<std::int64_t>* moment) {
    last = at;
    signal = with;
    killed_at = moment;
    passed = 0;
    armed = true;
  }
  void pass() {
    if (const std::int64_t us = delay_us; us > 0) {
      const timespec pause{0, 1000 * us};
      nanosleep(&pause, nullptr);
    }
    if (!armed || ++passed != last) return;
    *killed_at = monotonic_us();
    kill(getpid(), signal);
  }
};
inline KillPoints kill_points;
