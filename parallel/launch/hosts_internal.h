// The parts of a job on several hosts: ssh to each of them, and what is said over it.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/parallel/launch/hosts_options_internal.h"
#include "lockstep/parallel/launch/launcher_internal.h"

namespace lockstep::parallel {

void check_hosts_options(const HostsOptions& options);
// What lockstep-run on host `node` is told: `flags` and the options about hosts before the program.
Assignment assignment_for(const HostsOptions& options, int node, const std::string& token,
                          std::vector<std::string> flags);
// The bytes that read_assignment reads.
std::string to_bytes(const Assignment& assignment);

// `word` for a POSIX shell, to be read as one word whatever it holds.
std::string shell_quoted(const std::string& word);

// "lockstep-probe facts ..." and "lockstep-probe link ...": what a probe says. False: the line is none of these.
std::string facts_line(const HostReport& report);
std::string link_line(const HostLink& link);
bool take_probe_line(const std::string& line, HostReport& report);

// The links between `hosts` hosts in the order in which they are measured: the first host's come last.
std::vector<HostLink> links_between(int hosts);

// ssh to one host.
struct Session {
  Descriptor input;  // its stdin; none once hung up
  std::string unsent = {};
  LineReader streams[2] = {};  // stdout, stderr
  std::optional<WorkerProcess> process = {};
  std::string last_error = {};  // line on stderr
};

// ssh to all hosts at once. Nothing is left of it, however this process ends.
class Sessions {
 public:
  using OnLine = FunctionRef<void(std::size_t host, bool is_stderr, const std::string& line)>;

  // Throws IoError where ssh cannot be started.
  Sessions(const HostsOptions& options, const std::vector<Assignment>& assignments);

  struct Ended {
    std::size_t host = 0;
    int code = 0, signal = 0;
    std::string last_error = {};
  };
  // Waits until something happens, or `timeout` ms (-1: none) have passed. Returns the hosts that have ended.
  std::vector<Ended> turn(int timeout, int stop_fd, OnLine on_line);
  bool is_stop_requested() const { return is_stop_requested_; }  // stop_fd was readable in the last turn
  bool is_running() const;
  bool is_running(std::size_t host) const { return sessions_[host]->process->is_running(); }

  void tell(int signal);  // to the launchers
  void hang_up();         // they stop their ranks and end
  void kill();

 private:
  void start(const HostsOptions& options, std::size_t host, const Assignment& assignment);
  void send(Session& session);
  void emit(std::size_t host, bool is_stderr, const std::vector<std::string>& lines, OnLine on_line);

  Watchdog watchdog_;
  std::vector<std::unique_ptr<Session>> sessions_;
  bool is_stop_requested_ = false;
};

}  // namespace lockstep::parallel
