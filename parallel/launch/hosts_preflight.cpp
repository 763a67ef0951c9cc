// The pre-flight, seen from where the job is started.
#include <algorithm>

#include "lockstep/parallel/launch/hosts_internal.h"
#include "lockstep/parallel/rendezvous/deadline_internal.h"
#include "lockstep/tensor/check_internal.h"

namespace lockstep::parallel {

namespace {

using Clock = std::chrono::steady_clock;

constexpr std::chrono::milliseconds kForEachLink{500};  // more, as they are measured in turn

class Preflight {
 public:
  Preflight(const HostsOptions& options, const std::vector<Assignment>& assignments);
  std::vector<HostReport> run();

 private:
  bool has_answered(std::size_t host) const { return reports_[host].cores > 0; }
  bool is_hopeless() const;
  void take(const Sessions::Ended& ended);
  void take_line(std::size_t host, bool is_stderr, const std::string& line);
  void compare(HostReport& report) const;

  const HostsOptions& options_;
  Clock::time_point begin_ = Clock::now();
  Deadline deadline_;
  Sessions sessions_;
  std::vector<HostReport> reports_;
  bool is_hung_up_ = false;
};

Preflight::Preflight(const HostsOptions& options, const std::vector<Assignment>& assignments)
    : options_(options), deadline_(options.preflight_timeout +
                                   kForEachLink * links_between(static_cast<int>(options.hosts.size())).size()),
      sessions_(options, assignments) {
  for (const Host& host : options.hosts) reports_.push_back({.host = host.name});
}

std::vector<HostReport> Preflight::run() {
  const auto on_line = [&](std::size_t host, bool is_stderr, const std::string& line) {
    take_line(host, is_stderr, line);
  };
  int stop_fd = options_.stop_fd;
  while (sessions_.is_running()) {
    const auto slice = static_cast<int>(deadline_.slice().count());
    for (const Sessions::Ended& ended : sessions_.turn(slice, stop_fd, on_line)) take(ended);
    if (sessions_.is_stop_requested() && take_request(stop_fd) != 0) throw Error("pre-flight: stopped");
    if (is_hopeless() && !std::exchange(is_hung_up_, true)) sessions_.hang_up();
    if (!deadline_.passed()) continue;
    for (std::size_t host = 0; host < reports_.size(); ++host) {
      if (!is_hung_up_ && sessions_.is_running(host))
        reports_[host].error = has_answered(host) ? "its links could not be measured in time"
                                                  : "no answer in time; try it by hand: ssh " + reports_[host].host;
    }
    break;
  }
  for (HostReport& report : reports_) {
    std::sort(report.links.begin(), report.links.end(), [](const auto& a, const auto& b) { return a.to < b.to; });
    compare(report);
  }
  return std::move(reports_);
}

// One has failed, so that the links cannot all be measured; the others have at least said what they are.
bool Preflight::is_hopeless() const {
  bool has_failed = false;
  for (std::size_t host = 0; host < reports_.size(); ++host) {
    if (sessions_.is_running(host) && !has_answered(host)) return false;
    has_failed |= !reports_[host].error.empty();
  }
  return has_failed;
}

void Preflight::take(const Sessions::Ended& ended) {
  HostReport& report = reports_[ended.host];
  if (is_hung_up_ || (ended.code == 0 && has_answered(ended.host))) return;
  HostExit exit{.host = report.host, .code = ended.code, .signal = ended.signal, .last_error = ended.last_error};
  if (exit.code == 0) exit.code = kLauncherFailed;  // it did not say what it should
  const std::string text = exit.to_string();
  report.error =
      exit.code == kLauncherFailed && !exit.last_error.empty() ? exit.last_error : text.substr(text.find(": ") + 2);
}

void Preflight::take_line(std::size_t host, bool is_stderr, const std::string& line) {
  HostReport& report = reports_[host];
  if (is_stderr || !take_probe_line(line, report)) return;
  // Of hosts that are not in the list nothing is kept.
  std::erase_if(report.links, [&](const HostLink& link) {
    return link.from != static_cast<int>(host) || link.to < 0 || link.to >= link.from;
  });
  if (report.reachable_ms > 0) return;
  report.reachable_ms = std::chrono::duration<double, std::milli>(Clock::now() - begin_).count();
}

// Ranks of different programs end in errors that are hard to read, or in sums that are wrong.
void Preflight::compare(HostReport& report) const {
  const HostReport& first = reports_[0];
  const auto check = [&](const std::string& what, const std::string& have, const std::string& want) {
    if (!report.error.empty() || have == want || have.empty() || want.empty()) return;
    report.error = fmt::format("{} is {}, that on {} is {}; install the same everywhere", what, have.substr(0, 16),
                               first.host, want.substr(0, 16));
  };
  check("the version of Lockstep", report.version, first.version);
  check("the hash of " + options_.command[0], report.program_hash, first.program_hash);
  check("the hash of liblockstep", report.library_hash, first.library_hash);
}

}  // namespace

std::vector<HostReport> check_hosts(const HostsOptions& options) {
  check_hosts_options(options);
  const std::string token = new_job_token();
  std::vector<Assignment> assignments;
  for (std::size_t i = 0; i < options.hosts.size(); ++i)
    assignments.push_back(assignment_for(options, static_cast<int>(i), token, {"--probe"}));
  return Preflight(options, assignments).run();
}

std::string to_table(const std::vector<HostReport>& reports) {
  std::size_t width = 4;
  for (const HostReport& report : reports) width = std::max(width, report.host.size());
  std::string out = fmt::format("{:<{}}  reachable  cores\n", "host", width);
  std::string links;
  for (const HostReport& report : reports) {
    out += fmt::format("{:<{}}", report.host, width);
    if (report.cores > 0) out += fmt::format("  {:>6.0f} ms  {:>5}", report.reachable_ms, report.cores);
    if (!report.error.empty()) out += "  failed";
    out += "\n";
    for (const HostLink& link : report.links) {
      if (links.empty()) links = fmt::format("\n{:<{}}  {:<{}}    latency   bandwidth\n", "link", width, "", width);
      links +=
          fmt::format("{:<{}}  {:<{}}  {:>6.0f} us  {:>5.2f} GB/s\n", report.host, width,
                      reports[static_cast<std::size_t>(link.to)].host, width, link.latency_us, link.gigabytes_per_s);
    }
  }
  return out + links;
}

}  // namespace lockstep::parallel
