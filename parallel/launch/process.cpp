// A process that a launcher has started: how it ends, and what it writes.
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>

#include "lockstep/parallel/launch/launch_internal.h"
#include "lockstep/parallel/rendezvous/limits_internal.h"
#include "lockstep/tensor/check_internal.h"

namespace lockstep::parallel {

WorkerProcess::WorkerProcess(const WorkerSpec& spec, Watchdog& watchdog)
    : watchdog_(watchdog), pid_(start_worker(spec)), pidfd_(static_cast<int>(::syscall(SYS_pidfd_open, pid_, 0))) {
  if (pidfd_) return;
  const int error = errno;
  ::kill(-pid_, SIGKILL);
  ::waitpid(pid_, nullptr, 0);
  throw IoError(fmt::format("launch: cannot watch process {}: {}", pid_, reason(error)));
}

WorkerProcess::~WorkerProcess() {
  if (!pidfd_) return;
  signal(SIGKILL);
  pollfd ended{pidfd_.get(), POLLIN, 0};
  if (::poll(&ended, 1, 1000) == 1) take_end();
}

void WorkerProcess::signal(int number) const {
  if (pidfd_) ::kill(-pid_, number);
}

WorkerProcess::End WorkerProcess::take_end() {
  ::kill(-pid_, SIGKILL);  // the group cannot be another's before the wait below
  watchdog_.forget(pid_);
  int status = 0;
  const pid_t waited = uninterrupted([&] { return ::waitpid(pid_, &status, 0); });
  pidfd_.reset();
  if (waited != pid_) return {.code = 1};
  if (WIFSIGNALED(status)) return {.code = 128 + WTERMSIG(status), .signal = WTERMSIG(status)};
  return {.code = WEXITSTATUS(status)};
}

// --- output -------------------------------------------------------------------------------------------------------------

Descriptor LineReader::open(const std::string& what) {
  int ends[2];
  LOCKSTEP_CHECK_IO(::pipe2(ends, O_CLOEXEC) == 0, "launch: no pipe for the output of {}: {}", what, reason(errno));
  pipe_ = Descriptor(ends[0]);
  ::fcntl(ends[0], F_SETFL, O_NONBLOCK);
  return Descriptor(ends[1]);
}

std::vector<std::string> LineReader::read() {
  std::vector<std::string> lines;
  char buffer[16 << 10];
  const ssize_t size = uninterrupted([&] { return ::read(pipe_.get(), buffer, sizeof(buffer)); });
  if (size < 0 && errno == EAGAIN) return lines;
  if (size <= 0) {
    pipe_.reset();
    return lines;
  }
  rest_.append(buffer, static_cast<std::size_t>(size));
  std::size_t begin = 0;
  for (;;) {
    std::size_t end = rest_.find('\n', begin);
    const bool is_long = std::min(end, rest_.size()) - begin > kMaxOutputLine;
    if (is_long) end = begin + kMaxOutputLine;
    if (end == std::string::npos) break;
    lines.push_back(rest_.substr(begin, end - begin));
    begin = is_long ? end : end + 1;
  }
  rest_.erase(0, begin);
  return lines;
}

std::vector<std::string> LineReader::finish() {
  std::vector<std::string> lines;
  while (pipe_) {
    pollfd ready{pipe_.get(), POLLIN, 0};
    if (::poll(&ready, 1, 0) <= 0) break;
    for (std::string& line : read()) lines.push_back(std::move(line));
  }
  if (!rest_.empty()) lines.push_back(std::exchange(rest_, {}));
  return lines;
}

}  // namespace lockstep::parallel
