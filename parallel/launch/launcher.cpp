#include "lockstep/parallel/launch/launcher.h"

#include <poll.h>
#include <signal.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <optional>

#include "lockstep/parallel/launch/launcher_internal.h"
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
  LOCKSTEP_CHECK(nodes.count >= 1 && nodes.count <= kMaxNodes, "launch: there are {} nodes, expected 1 to {}",
                 nodes.count, kMaxNodes);
  LOCKSTEP_CHECK(nodes.min_count >= 0 && nodes.min_count <= nodes.count, "launch: at least {} of {} nodes are wanted",
                 nodes.min_count, nodes.count);
  LOCKSTEP_CHECK(nodes.rank >= 0 && nodes.rank < nodes.count, "launch: the node's rank is {}, expected 0 to {}",
                 nodes.rank, nodes.count - 1);
  LOCKSTEP_CHECK(nodes.port >= 1 && nodes.port <= 65535, "launch: the master's port is {}, expected 1 to 65535",
                 nodes.port);
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
  std::unique_ptr<NodeLink> link = options.nodes.count > 1 ? std::make_unique<NodeLink>(options, identity) : nullptr;
  std::optional<RankLogs> logs;
  if (!options.logs.folder.empty()) logs.emplace(options.logs, identity.id);
  Watchdog watchdog;
  BackOff back_off(options.back_off);
  for (int attempt = 0;; ++attempt) {
    const Placement alone{.local_size = options.nproc, .world_size = options.nproc, .attempt = attempt};
    const std::optional<Placement> place = link ? link->meet(attempt) : alone;
    if (!place)
      return {.exit_code = 128 + SIGTERM,
              .ranks = {},
              .attempt = attempt,
              .was_asked_to_stop = true,
              .elsewhere = "Stopped while it waited for other hosts\n"};
    attempt = place->attempt;
    const auto begin = Clock::now();
    LaunchResult result = run_attempt({.options = options,
                                       .identity = identity,
                                       .place = *place,
                                       .watchdog = watchdog,
                                       .logs = logs ? &*logs : nullptr,
                                       .failed_elsewhere = link ? link->failed_elsewhere() : -1,
                                       .on_line = on_line});
    if (link) link->end(result);
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
