#include "support/stop.h"

#include <signal.h>
#include <time.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdint>

namespace samples {
namespace {

std::atomic<int> caught{0};
std::atomic<bool> cursor_hidden{false};
static_assert(std::atomic<int>::is_always_lock_free && std::atomic<std::int64_t>::is_always_lock_free,
              "a signal handler may only touch lock-free atomics");

constexpr std::int64_t kSameRequest = 500;  // ms
std::atomic<std::int64_t> first_at[2];      // of SIGINT and SIGTERM; 0: not received yet

std::int64_t now_ms() {
  timespec now{};
  clock_gettime(CLOCK_MONOTONIC, &now);
  return std::int64_t{now.tv_sec} * 1000 + now.tv_nsec / 1'000'000;
}

// A signal that arrives again has its default effect, except within kSameRequest: `timeout` and job scripts send a
// signal to the program and again to its process group.
void on_signal(int signal) {
  const int error = errno;  // of the interrupted code, which may be about to read it
  caught.store(signal);
  const std::int64_t now = now_ms();
  std::int64_t first = 0;
  if (!first_at[signal == SIGTERM].compare_exchange_strong(first, now) && now - first >= kSameRequest) {
    ::signal(signal, SIG_DFL);
    raise(signal);  // takes effect when the handler returns
  }
  // The next signal kills the process, so show the cursor now.
  if (cursor_hidden.load()) [[maybe_unused]]
    const auto written = write(STDOUT_FILENO, "\x1b[?25h", 6);
  errno = error;
}

}  // namespace

void install_stop_handler() {
  struct sigaction action = {};
  action.sa_handler = on_signal;
  sigaction(SIGINT, &action, nullptr);
  sigaction(SIGTERM, &action, nullptr);
}

void ignore_stop_signals() {
  signal(SIGINT, SIG_IGN);
  signal(SIGTERM, SIG_IGN);
}

int stop_signal() { return caught.load(std::memory_order_relaxed); }
void set_cursor_hidden(bool hidden) { cursor_hidden.store(hidden); }

}  // namespace samples
