/// \file
/// Starts the ranks of this host, as lockstep-run does, and supervises them: they end and are restarted together.
/// Nothing here prints: the ranks' output is passed line by line to a callback and written to files, and a result says
/// how the ranks ended.
#pragma once

#include <signal.h>

#include <chrono>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/base/callback.h"
#include "lockstep/base/error.h"

namespace lockstep::parallel {

/// The hosts of a job. One launcher runs on each, with the same options except the rank, and starts the same number of
/// ranks. The launchers exchange nothing: a failure reaches the other hosts through the ranks.
struct NodeOptions {
  int count = 1;                      ///< hosts of the job; several need LOCKSTEP_JOB_TOKEN and allow no restarts
  int rank = 0;                       ///< this host's number
  std::string address = "127.0.0.1";  ///< MASTER_ADDR: an address of host 0
  int port = 29500;                   ///< MASTER_PORT: the port of host 0 on which rank 0 listens
};

/// A choice of output streams for each rank: 1 is stdout, 2 stderr, 3 both.
struct StreamChoice {
  int all = 0;                                          ///< of the ranks not named below
  std::vector<std::pair<int, int>> by_local_rank = {};  ///< instead of `all`
  int of(int local_rank) const;                         ///< the choice for one rank of this host
};

/// Files `<folder>/<run` `id>_<random>/attempt_<n>/<local` rank>/{stdout,stderr}.log and error.json, as torchrun's.
struct LogOptions {
  std::string folder = {};      ///< empty: no files
  StreamChoice redirects = {};  ///< streams written to files only
  StreamChoice tee = {};        ///< streams written to files and passed to the callback
};

/// The program to start, and how to supervise its ranks.
struct LaunchOptions {
  int nproc = 1;                              ///< ranks on this host
  std::vector<std::string> command = {};      ///< program and arguments; found in PATH if without a slash
  std::vector<std::string> environment = {};  ///< "NAME=value", on top of this process's and the ranks' own
  std::chrono::milliseconds grace = std::chrono::seconds(30);  ///< between SIGTERM and SIGKILL
  /// A descriptor that becomes readable, with a signalfd_siginfo or a byte to read, to request a stop: the ranks
  /// receive that signal (SIGTERM for a byte) and SIGCONT, and at the second request SIGKILL. The same signal again
  /// within kSameRequest is the same request. -1: none. See StopSignals.
  int stop_fd = -1;
  /// Job scripts, make and coreutils' timeout send a signal to the launcher, and again to its process group.
  static constexpr std::chrono::milliseconds kSameRequest{500};
  int max_restarts = 0;     ///< how often all ranks are restarted after a failure
  std::string run_id = {};  ///< TORCHELASTIC_RUN_ID; empty: a random one, or "none" on several hosts
  /// The pause before ranks that keep failing within kCrashLoop are restarted; it doubles each time, up to a minute.
  std::chrono::milliseconds back_off = std::chrono::seconds(1);
  static constexpr std::chrono::seconds kCrashLoop{10};  ///< since their start
  NodeOptions nodes = {};                                ///< the hosts of the job
  LogOptions logs = {};                                  ///< files for the ranks' output
  /// Where launch reads a rank's stdout, makes it a pseudo-terminal in raw mode, since programs write each line to a
  /// terminal when it is complete, but only large blocks to a pipe. False, or without pseudo-terminals: a pipe.
  bool pty = true;
};

/// Called for each line (without its end) that a rank writes, on the thread that calls launch. Without a callback the
/// ranks write to this process's stdout and stderr.
using OutputCallback = Callback<void(int rank, bool is_stderr, const std::string& line)>;

/// How one rank ended.
struct RankExit {
  int rank = 0;              ///< its number in the job
  std::int64_t pid = -1;     ///< its process
  int code = 0;              ///< 128 + signal for signals
  int signal = 0;            ///< the signal that killed it; 0: none
  bool was_stopped = false;  ///< stopped by launch, after another rank had failed or on request
  bool is_stuck = false;     ///< still running after SIGKILL
  std::string error;         ///< the message of its error file

  /// "rank 1 (pid 71) was killed by signal 11 (SIGSEGV)", or "... exited with code 3: all_reduce: ..."
  std::string to_string() const;
};

/// How a job ended.
struct LaunchResult {
  int exit_code = 0;               ///< that of the first rank to fail; 0 if none did; 128 + stop_signal if was_killed
  std::vector<RankExit> ranks;     ///< the ranks of this host, in order
  int first_failure = -1;          ///< the first rank to fail; -1: none
  int attempt = 0;                 ///< restarts so far
  bool was_asked_to_stop = false;  ///< a stop was requested through stop_fd
  int stop_signal = 0;             ///< the last signal read from stop_fd
  bool was_killed = false;         ///< ranks were killed after a second request
  /// Empty if exit_code is 0; else some lines: a request to stop, the first failure, the other ranks.
  std::string summary() const;
};

/// Called when an attempt has failed and another one follows after `pause`.
using RestartCallback = Callback<void(const LaunchResult& failed, std::chrono::milliseconds pause)>;

/// Runs `command` nproc times with the variables that torchrun sets, and waits until all ranks have ended. When a rank
/// fails, the others receive SIGTERM, and SIGKILL after the grace period; then all are restarted, while restarts are
/// left. No rank outlives this process, not even if it is killed. Throws InvalidArgument for options that make no
/// sense, IoError if the program cannot be started.
LaunchResult launch(const LaunchOptions& options, OutputCallback on_line = {}, RestartCallback on_restart = {});

/// During its lifetime SIGINT, SIGTERM, SIGHUP and SIGQUIT of this thread are read from fd(), for
/// LaunchOptions::stop_fd. An ignored SIGHUP (nohup) stays ignored. Make it before other threads are started.
class StopSignals {
 public:
  StopSignals();
  ~StopSignals();
  StopSignals(const StopSignals&) = delete;
  StopSignals& operator=(const StopSignals&) = delete;
  int fd() const { return fd_; }  ///< for LaunchOptions::stop_fd

 private:
  int fd_ = -1;
  sigset_t before_;  // the thread's signal mask
};

/// For a rank that ends because of an error: writes `message` to the file from which the launcher (lockstep-run,
/// torchrun) takes it for its summary. Does nothing without a launcher. Never throws.
void write_error_file(const std::string& message);

/// A token for LOCKSTEP_JOB_TOKEN: 256 random bits in hexadecimal.
std::string new_job_token();

}  // namespace lockstep::parallel
