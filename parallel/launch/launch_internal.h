// Parts of the launcher: a rank's environment, process and error file, and one attempt of all ranks.
#pragma once

#include <sys/types.h>

#include <string>
#include <vector>

#include "lockstep/parallel/launch/launch.h"
#include "lockstep/parallel/rendezvous/socket_internal.h"

namespace lockstep::parallel {

// The values that all ranks of a job share.
struct JobIdentity {
  std::string address = "127.0.0.1";  // MASTER_ADDR
  std::string port = {};              // MASTER_PORT: on one host only a name, without a listening socket
  std::string id = {};                // TORCHELASTIC_RUN_ID
  std::string token = {};             // LOCKSTEP_JOB_TOKEN
  Descriptor claim = {};              // keeps the port from other launchers on this host
};
// "NAME=value" for one rank: this process's environment, then torchrun's variables, then `options.environment`. If
// stdout is read line by line, TERM is dumb: programs then move no cursor and write no colours.
std::vector<std::string> environment_of(int local_rank, int attempt, const LaunchOptions& options,
                                        const JobIdentity& job, const std::string& error_file, bool is_stdout_read);

// A process that kills the ranks' process groups when the launcher ends, however it ends. (The parent-death signal
// reaches only the ranks themselves, not what they have started.)
class Watchdog {
 public:
  Watchdog();
  ~Watchdog();
  Watchdog(const Watchdog&) = delete;
  Watchdog& operator=(const Watchdog&) = delete;

  bool add(pid_t group) const { return send(group); }  // async-signal-safe; on failure errno says why
  void remove(pid_t group) const { send(-group); }     // no effect if the watchdog was killed

 private:
  bool send(pid_t entry) const;
  pid_t pid_ = -1;
  Descriptor socket_;
};

// A process that leads a session and a process group of its own.
struct Process {
  pid_t pid = -1;
  Descriptor pidfd = {};  // readable once the process has ended; empty before start_process and after reap
  bool is_running() const { return bool(pidfd); }
};
// An empty `out` or `err` is the launcher's own. Throws IoError if the program cannot be started.
Process start_process(const std::vector<std::string>& command, const std::vector<std::string>& environment,
                      const Descriptor& out, const Descriptor& err, const Watchdog& watchdog);
// Takes the status of a process that has ended, and kills what the process has started and left.
void reap(Process& process, const Watchdog& watchdog, RankExit& exit);

// An error file in memory, so that no file is left behind. Ranks open it by its path.
class ErrorFile {
 public:
  ErrorFile();
  std::string path() const;
  std::string read() const;  // the error's text; empty if there is none

 private:
  Descriptor file_;
};
// Returns the message in an error file's JSON, in torchrun's form; empty for any other text.
std::string message_in(const std::string& json);
std::string error_json(const std::string& message);

// Writes all of it. On failure errno says why.
bool write_all(const Descriptor& file, const std::string& text);

// Returns the signal requested through LaunchOptions::stop_fd, or 0. At the end of the stream sets `stop_fd` to -1.
int read_stop_request(int& stop_fd);

// Runs all ranks of this host until the last one has ended. `log_folder` is empty if nothing is logged.
LaunchResult run_attempt(int number, const LaunchOptions& options, const JobIdentity& job,
                         const std::string& log_folder, const OutputCallback& on_line);

}  // namespace lockstep::parallel
