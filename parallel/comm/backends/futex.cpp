#include "lockstep/parallel/comm/backends/futex_internal.h"

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <string>

namespace lockstep::parallel {

static_assert(sizeof(std::atomic<std::uint32_t>) == 4 && std::atomic<std::uint32_t>::is_always_lock_free);

void futex_wait(std::atomic<std::uint32_t>& word, std::uint32_t expected, std::chrono::milliseconds longest) {
  timespec limit{};
  limit.tv_sec = longest.count() / 1000;
  limit.tv_nsec = longest.count() % 1000 * 1'000'000;
  const long result = syscall(SYS_futex, &word, FUTEX_WAIT, expected, &limit, nullptr, 0);
  if (result != 0 && errno != EAGAIN && errno != EINTR && errno != ETIMEDOUT)
    throw DeviceError(std::string("futex: ") + std::strerror(errno));
}

void futex_wake(std::atomic<std::uint32_t>& word, int count) {
  if (syscall(SYS_futex, &word, FUTEX_WAKE, count, nullptr, nullptr, 0) < 0)
    throw DeviceError(std::string("futex: ") + std::strerror(errno));
}

}  // namespace lockstep::parallel
