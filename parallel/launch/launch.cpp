#include "lockstep/parallel/launch/launch.h"

#include <poll.h>
#include <signal.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <optional>

#include "lockstep/parallel/launch/launch_internal.h"
#include "lockstep/parallel/rendezvous/deadline_internal.h"
#include "lockstep/parallel/rendezvous/limits_internal.h"
#include "lockstep/tensor/check_internal.h"

namespace lockstep::parallel {

namespace {

using std::chrono::milliseconds;
using Clock = Deadline::Clock;

void check(const LaunchOptions& options) {
  LOCKSTEP_CHECK(options.nproc >= 1 && options.nproc <= kMaxRanks, "launch: nproc is {}, expected 1 to {}",
                 options.nproc, kMaxRanks);
  LOCKSTEP_CHECK(!options.command.empty() && !options.command[0].empty(), "launch: there is no program to run");
  LOCKSTEP_CHECK(options.grace.count() >= 0, "launch: grace is {} ms, expected 0 or more", options.grace.count());
  LOCKSTEP_CHECK(options.max_restarts >= 0, "launch: max_restarts is {}, expected 0 or more", options.max_restarts);
  LOCKSTEP_CHECK(options.back_off.count() >= 0, "launch: back_off is {} ms, expected 0 or more",
                 options.back_off.count());
  const NodeOptions& nodes = options.nodes;
  LOCKSTEP_CHECK(nodes.count >= 1 && nodes.count <= kMaxRanks / options.nproc,
                 "launch: there are {} nodes with {} ranks each, expected 1 or more, with at most {} ranks in all",
                 nodes.count, options.nproc, kMaxRanks);
  LOCKSTEP_CHECK(nodes.rank >= 0 && nodes.rank < nodes.count, "launch: the node's rank is {}, expected 0 to {}",
                 nodes.rank, nodes.count - 1);
  LOCKSTEP_CHECK(nodes.port >= 1 && nodes.port <= 65535, "launch: the master's port is {}, expected 1 to 65535",
                 nodes.port);
  LOCKSTEP_CHECK(
      nodes.count == 1 || options.max_restarts == 0,
      "launch: max_restarts is {} with {} nodes, expected 0: a launcher restarts the ranks of its own host only\n"
      "Start the job with torchrun, which restarts the ranks of all hosts together",
      options.max_restarts, nodes.count);
}

// How long to wait before the next attempt: not at all after one that ran for a while.
class BackOff {
 public:
  explicit BackOff(milliseconds first) : first_(first) {}
  milliseconds after(Clock::duration lifetime) {
    constexpr milliseconds kLongest = std::chrono::minutes(1);
    if (lifetime >= LaunchOptions::kCrashLoop) next_ = milliseconds(0);
    const milliseconds pause = next_;
    next_ = std::min(std::max(first_, 2 * next_), kLongest);
    return pause;
  }

 private:
  milliseconds first_, next_{0};
};

// Returns the signal of a request to stop, which ends the pause, or 0.
int pause_unless_stopped(int stop_fd, milliseconds pause) {
  pollfd stop{stop_fd, POLLIN, 0};
  for (Deadline until(pause); !until.passed();) {
    if (::poll(&stop, 1, static_cast<int>(until.slice().count())) <= 0) continue;
    if (const int signal = take_request(stop.fd)) return signal;
  }
  return 0;
}

}  // namespace

LaunchResult launch(const LaunchOptions& options, OutputCallback on_line, RestartCallback on_restart) {
  check(options);
  RunIdentity identity = make_run_identity(options);
  std::optional<RankLogs> logs;
  if (!options.logs.folder.empty()) logs.emplace(options.logs, identity.id);
  Watchdog watchdog;
  BackOff back_off(options.back_off);
  for (int attempt = 0;; ++attempt) {
    const Placement place{.first_rank = options.nodes.rank * options.nproc,
                          .local_size = options.nproc,
                          .world_size = options.nodes.count * options.nproc,
                          .attempt = attempt,
                          .group_rank = options.nodes.rank,
                          .group_size = options.nodes.count};
    const auto begin = Clock::now();
    LaunchResult result = run_attempt({.options = options,
                                       .identity = identity,
                                       .place = place,
                                       .watchdog = watchdog,
                                       .logs = logs ? &*logs : nullptr,
                                       .on_line = on_line});
    if (result.exit_code == 0 || result.was_asked_to_stop || attempt == options.max_restarts) return result;
    const milliseconds pause = back_off.after(Clock::now() - begin);
    if (on_restart) on_restart(result, pause);
    if (const int signal = pause_unless_stopped(options.stop_fd, pause)) {
      result.was_asked_to_stop = true;
      result.stop_signal = signal;
      return result;
    }
  }
}

int take_request(int& stop_fd) {
  signalfd_siginfo info{};
  const ssize_t size = uninterrupted([&] { return ::read(stop_fd, &info, sizeof(info)); });
  if (size < 0 && errno == EAGAIN) return 0;
  if (size <= 0) {
    stop_fd = -1;
    return 0;
  }
  return size == sizeof(info) ? static_cast<int>(info.ssi_signo) : SIGTERM;
}

// --- signals ------------------------------------------------------------------------------------------------------------

StopSignals::StopSignals() : before_(sizeof(sigset_t)) {
  sigset_t stops, before;
  sigemptyset(&stops);
  for (const int signal : {SIGINT, SIGTERM, SIGQUIT}) sigaddset(&stops, signal);
  struct sigaction hangup {};
  ::sigaction(SIGHUP, nullptr, &hangup);
  // A blocked signal is queued even if it is ignored, so a launcher under nohup would end with its terminal.
  if (hangup.sa_handler != SIG_IGN) sigaddset(&stops, SIGHUP);
  fd_ = ::signalfd(-1, &stops, SFD_CLOEXEC | SFD_NONBLOCK);
  LOCKSTEP_CHECK_IO(fd_ >= 0, "StopSignals: no descriptor for signals: {}", reason(errno));
  ::pthread_sigmask(SIG_BLOCK, &stops, &before);
  std::memcpy(before_.data(), &before, sizeof(before));
}

StopSignals::~StopSignals() {
  ::close(fd_);
  sigset_t before;
  std::memcpy(&before, before_.data(), sizeof(before));
  ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

}  // namespace lockstep::parallel
