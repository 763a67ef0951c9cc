// Matrix products that signals interrupt.
#include <signal.h>
#include <sys/time.h>

#include <atomic>
#include <cstring>

#include "tests/support/testing.h"

namespace {

std::atomic<int> arrived{0};
static_assert(std::atomic<int>::is_always_lock_free);

// A SIGALRM every 50 us while the object exists.
class Signals {
 public:
  Signals() {
    struct sigaction action = {};
    action.sa_handler = [](int) { arrived.fetch_add(1, std::memory_order_relaxed); };
    action.sa_flags = SA_RESTART;
    sigaction(SIGALRM, &action, &before_);
    const itimerval interval{.it_interval = {.tv_sec = 0, .tv_usec = 50}, .it_value = {.tv_sec = 0, .tv_usec = 50}};
    setitimer(ITIMER_REAL, &interval, nullptr);
  }
  ~Signals() {
    const itimerval none{};
    setitimer(ITIMER_REAL, &none, nullptr);
    sigaction(SIGALRM, &before_, nullptr);
  }
  Signals(const Signals&) = delete;
  Signals& operator=(const Signals&) = delete;

 private:
  struct sigaction before_;
};

}  // namespace

TEST_CASE("a signal handler that runs during a matrix product changes neither its result nor other memory") {
  ls::set_num_threads(1);
  const Signals signals;
  for (const std::int64_t k : {16, 128, 512}) {
    CAPTURE(k);
    const ls::Tensor a = ls::randn({48, k}), b = ls::randn({k, 16}), want = ls::matmul(a, b);
    // Heap corruption ends the program, if not here then in a later allocation. At least some signals arrive.
    const int before = arrived.load();
    for (int i = 0; i < 20'000 || arrived.load() < before + 100; ++i) {
      const ls::Tensor have = ls::matmul(a, b);
      REQUIRE(std::memcmp(have.raw_data(), want.raw_data(), sizeof(float) * 48 * 16) == 0);
    }
  }
}
