#include "lockstep/parallel/comm/backends/sleep_internal.h"

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <climits>
#include <cstring>
#include <string>

#include "lockstep/base/error.h"

namespace lockstep::parallel {

static_assert(sizeof(std::atomic<std::uint32_t>) == 4 && std::atomic<std::uint32_t>::is_always_lock_free);

void Sleeper::sleep(std::chrono::milliseconds longest) {
  timespec limit{};
  limit.tv_sec = longest.count() / 1000;
  limit.tv_nsec = longest.count() % 1000 * 1'000'000;
  const long result = syscall(SYS_futex, &header_.events, FUTEX_WAIT, seen_, &limit, nullptr, 0);
  if (result != 0 && errno != EAGAIN && errno != EINTR && errno != ETIMEDOUT)
    throw DeviceError(std::string("futex: ") + std::strerror(errno));
}

void wake_sleepers(ControlHeader& header) {
  if (header.sleepers.load(std::memory_order_seq_cst) == 0) return;
  header.events.fetch_add(1, std::memory_order_seq_cst);
  if (syscall(SYS_futex, &header.events, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0) < 0)
    throw DeviceError(std::string("futex: ") + std::strerror(errno));
}

}  // namespace lockstep::parallel
