#include "support/stop.h"

#include <signal.h>
#include <unistd.h>

#include <atomic>

namespace samples {
namespace {

std::atomic<int> caught{0};
std::atomic<bool> cursor_hidden{false};
static_assert(std::atomic<int>::is_always_lock_free, "a signal handler may only touch lock-free atomics");

void on_signal(int signal) {
  caught.store(signal);
  // The next signal kills the process, so show the cursor now.
  if (cursor_hidden.load()) [[maybe_unused]]
    const auto written = write(STDOUT_FILENO, "\x1b[?25h", 6);
}

}  // namespace

void install_stop_handler() {
  struct sigaction action = {};
  action.sa_handler = on_signal;
  action.sa_flags = static_cast<int>(SA_RESETHAND);  // once: the second signal has its default effect
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
