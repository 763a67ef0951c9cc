// A job on several hosts: how it ends, and that it ends everywhere.
#include <signal.h>

#include <algorithm>
#include <optional>

#include "lockstep/parallel/launch/hosts_internal.h"
#include "lockstep/parallel/rendezvous/deadline_internal.h"
#include "lockstep/tensor/check_internal.h"

namespace lockstep::parallel {

namespace {

// What launchers get on top of the grace of their ranks: to tell each other how it ended, and to end.
constexpr std::chrono::seconds kHostFarewell{10};
constexpr int kOfSsh = 255;  // ssh's own failures

class HostsJob {
 public:
  HostsJob(const HostsOptions& options, const std::vector<Assignment>& assignments, const HostOutputCallback& on_line);
  HostsResult run();

 private:
  int next_timeout();
  void take(const Sessions::Ended& ended);
  void take_stop_request();
  void hang_up();
  bool can_go_on_without(const HostExit& exit) const;

  const HostsOptions& options_;
  const HostOutputCallback& on_line_;
  int stop_fd_;
  Sessions sessions_;
  HostsResult result_;
  bool is_hung_up_ = false;
  std::optional<Deadline> until_hung_up_, until_kill_;
};

HostsJob::HostsJob(const HostsOptions& options, const std::vector<Assignment>& assignments,
                   const HostOutputCallback& on_line)
    : options_(options), on_line_(on_line), stop_fd_(options.stop_fd), sessions_(options, assignments) {
  for (std::size_t i = 0; i < options.hosts.size(); ++i)
    result_.hosts.push_back({.host = options.hosts[i].name, .node = static_cast<int>(i)});
}

HostsResult HostsJob::run() {
  const auto on_line = [&](std::size_t host, bool is_stderr, const std::string& line) {
    if (on_line_) on_line_(options_.hosts[host].name, is_stderr, line);
  };
  while (sessions_.is_running()) {
    for (const Sessions::Ended& ended : sessions_.turn(next_timeout(), stop_fd_, on_line)) take(ended);
    if (sessions_.is_stop_requested()) take_stop_request();
    if (until_hung_up_ && until_hung_up_->passed()) hang_up();
    if (until_kill_ && until_kill_->passed()) sessions_.kill();
  }
  return std::move(result_);
}

int HostsJob::next_timeout() {
  if (until_kill_) return static_cast<int>(until_kill_->slice().count());
  if (until_hung_up_) return static_cast<int>(until_hung_up_->slice().count());
  return -1;
}

// After a failure of ranks all launchers hear of it from each other, and end when their ranks have. Where ssh or a
// launcher has failed, the others may wait for that host for long.
void HostsJob::take(const Sessions::Ended& ended) {
  HostExit& exit = result_.hosts[ended.host];
  exit.code = ended.code;
  exit.signal = ended.signal;
  exit.last_error = ended.last_error;
  exit.was_stopped = is_hung_up_ || result_.first_failure >= 0;
  if (exit.code == 0 || can_go_on_without(exit)) return;
  if (result_.first_failure < 0) {
    result_.first_failure = exit.node;
    result_.exit_code = exit.code;
  }
  if (!exit.is_of_ranks()) return hang_up();
  if (!until_hung_up_) until_hung_up_.emplace(options_.grace + kHostFarewell);
}

// The first host's launcher is where all meet.
bool HostsJob::can_go_on_without(const HostExit& exit) const {
  if (options_.min_hosts == 0 || exit.node == 0 || exit.is_of_ranks() || result_.first_failure >= 0) return false;
  const auto lost =
      std::count_if(result_.hosts.begin(), result_.hosts.end(), [](const HostExit& host) { return host.code != 0; });
  return static_cast<long>(result_.hosts.size()) - lost >= options_.min_hosts;
}

void HostsJob::take_stop_request() {
  const int signal = take_request(stop_fd_);
  if (signal == 0) return;
  sessions_.tell(signal);
  if (std::exchange(result_.was_asked_to_stop, true) && !until_kill_) until_kill_.emplace(kHostFarewell);
}

void HostsJob::hang_up() {
  until_hung_up_.reset();
  if (std::exchange(is_hung_up_, true)) return;
  sessions_.hang_up();
  if (!until_kill_) until_kill_.emplace(options_.grace + kHostFarewell);
}

}  // namespace

bool HostExit::is_of_ranks() const {
  return code != 0 && signal == 0 && code != kOfSsh && (code < kLauncherFailed || code > 127);
}

std::string HostExit::to_string() const {
  std::string out = fmt::format("host {} (node {})", host, node);
  if (signal != 0) {
    out += fmt::format(": ssh was killed by signal {}", signal);
  } else if (code == kOfSsh) {
    out += ": the connection failed or ended";
  } else if (code == kLauncherFailed) {
    out += ": its launcher failed";
  } else if (code == 126 || code == 127) {
    out += ": lockstep-run could not be run there";
  } else {
    return out + fmt::format(" ended with code {}", code);
  }
  if (!last_error.empty()) out += ": " + last_error;
  if (code == 126 || code == 127) out += "\nInstall the same build on all hosts, or name its place with --remote-path";
  return out;
}

std::string HostsResult::summary() const {
  std::string out;
  for (const HostExit& host : hosts) {
    if (host.code == 0 || host.is_of_ranks()) continue;
    if (host.node == first_failure) out = "First to fail: " + host.to_string() + "\n" + out;
    if (host.node != first_failure && !host.was_stopped)
      out += fmt::format("{}: {}\n", exit_code == 0 ? "Lost" : "Then", host.to_string());
  }
  return out;
}

HostsResult launch_on_hosts(const HostsOptions& options, HostOutputCallback on_line) {
  check_hosts_options(options);
  const std::string token = new_job_token();
  std::vector<Assignment> assignments;
  for (std::size_t i = 0; i < options.hosts.size(); ++i)
    assignments.push_back(assignment_for(options, static_cast<int>(i), token, options.arguments));
  return HostsJob(options, assignments, on_line).run();
}

}  // namespace lockstep::parallel
