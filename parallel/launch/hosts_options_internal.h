// A job on several hosts from one place, as lockstep-run --hosts does it: over ssh it starts a launcher on each host, which
// gets its work and the job's token on its stdin and ends with it.
#pragma once

#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "lockstep/parallel/launch/launcher.h"

namespace lockstep::parallel {

struct Host {
  std::string name;  // as ssh takes it: a host, its address, or user@host
  int slots = 0;     // ranks to start there; 0: as many as on any
};

// Of "a,b,c". Throws InvalidArgument naming the host that ssh would not take as one, or that is there twice.
std::vector<Host> parse_hosts(const std::string& list);
// One host a line, "name" or "name slots=4"; # begins a comment. Throws IoError with file, line and column.
std::vector<Host> read_hosts(const std::string& path);

struct HostsOptions {
  std::vector<Host> hosts = {};  // the first one's launcher serves the meeting of all
  std::vector<std::string> ssh = {
      "ssh", "-o", "BatchMode=yes", "-o", "ConnectTimeout=10", "-o", "ServerAliveInterval=15"};
  std::string remote_path = {};                                // of lockstep-run there
  std::string folder = {};                                     // there, for the ranks
  std::vector<std::string> arguments = {};                     // options of lockstep-run, the same on all hosts
  std::vector<std::string> command = {};                       // program and arguments
  std::vector<std::string> environment = {};                   // "NAME=value", on top of what ssh gives there
  std::string address = {};                                    // of the first host, for the others; empty: its name
  int port = 29500;                                            // there
  int min_hosts = 0;                                           // the job goes on while so many are left; 0: all
  std::chrono::milliseconds grace = std::chrono::seconds(30);  // of the launchers, between SIGTERM and SIGKILL
  std::chrono::milliseconds preflight_timeout = std::chrono::seconds(15);
  int stop_fd = -1;  // as LaunchOptions::stop_fd
};

// Between two hosts, by their numbers; medians.
struct HostLink {
  int from = 0, to = 0;
  double latency_us = 0;       // half a round trip
  double gigabytes_per_s = 0;  // of a large message
};

struct HostReport {
  std::string host = {};
  std::string error = {};                            // what stands against a start, one line; empty: nothing
  double reachable_ms = 0;                           // from the start of ssh to the answer of lockstep-run
  std::string version = {};                          // of Lockstep
  std::string program_hash = {}, library_hash = {};  // SHA-256 of the program and of liblockstep
  int cores = 0;                                     // usable
  std::vector<HostLink> links = {};                  // to hosts before it in the list
};
// Asks all hosts at once, then measures the links between them, one after another.
std::vector<HostReport> check_hosts(const HostsOptions& options);
// A row for each host, then one for each link.
std::string to_table(const std::vector<HostReport>& reports);

// How ssh to a host ended.
struct HostExit {
  std::string host = {};
  int node = 0;
  int code = 0;    // 128 + signal for signals
  int signal = 0;  // that ended ssh itself
  bool was_stopped = false;
  std::string last_error = {};  // the last line that came on stderr

  // Whether the launcher there ended by itself, with what its ranks ended with; else ssh failed, or was killed.
  bool is_of_ranks() const;
  std::string to_string() const;
};

struct HostsResult {
  int exit_code = 0;            // of the host that failed first; 0 if none did
  std::vector<HostExit> hosts;  // by node
  int first_failure = -1;       // node
  bool was_asked_to_stop = false;
  // Empty unless ssh or a launcher failed: what ranks did is told by the launcher there.
  std::string summary() const;
};

// Called for each line of a launcher, on the thread that calls launch_on_hosts.
using HostOutputCallback = Callback<void(const std::string& host, bool is_stderr, const std::string& line)>;
// Runs the job and returns when all hosts are done. When one fails the others end; nothing is left on hosts that can be
// reached, even if this process is killed. Throws InvalidArgument for options that make no sense.
HostsResult launch_on_hosts(const HostsOptions& options, HostOutputCallback on_line);

// --- on each host -------------------------------------------------------------------------------------------------------

// What the launcher on a host is told on its stdin.
struct Assignment {
  std::string token;   // the job's
  std::string folder;  // to work in
  std::vector<std::string> environment, arguments;
};
// Reads exactly that much. Throws IoError where it is none.
Assignment read_assignment(int fd);

// The exit code of a launcher that failed by itself, not by its ranks.
inline constexpr int kLauncherFailed = 125;

// While it lives: a byte on `fd` is a stop signal for this process, and its end is SIGTERM, and after the grace SIGKILL. To
// be made after StopSignals, before other threads.
class Leash {
 public:
  Leash(int fd, std::chrono::milliseconds grace);
  ~Leash();
  Leash(const Leash&) = delete;
  Leash& operator=(const Leash&) = delete;

 private:
  class State;
  std::unique_ptr<State> state_;
};

// This host's part of check_hosts, which reads the lines from this launcher's stdout; each is to be written at once.
using ProbeCallback = Callback<void(const std::string& line)>;
void probe_host(const NodeOptions& nodes, const std::string& program, ProbeCallback on_line);

}  // namespace lockstep::parallel
