// Starts the ranks of a job on this host, as lockstep-run does, and sees to it that they end together.
//
// Nothing here prints: what the ranks write goes line by line to a callback, how they ended into a result.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

#include "lockstep/tensor/callback.h"
#include "lockstep/tensor/error.h"

namespace lockstep::inline LOCKSTEP_ABI::parallel {

struct LaunchOptions {
  int nproc = 1;
  std::vector<std::string> command = {};      // program and arguments; found in PATH if without a slash
  std::vector<std::string> environment = {};  // "NAME=value", on top of this process's and the ranks' own
  std::chrono::milliseconds grace = std::chrono::seconds(30);  // between SIGTERM and SIGKILL
  // A descriptor that becomes readable, with a signalfd_siginfo or a byte to read, when the ranks shall stop: they get
  // that signal (SIGTERM for a byte), and the second time SIGKILL. -1: none. See StopSignals.
  int stop_fd = -1;
};

// Called for each line (without its end) that a rank writes, on the thread that calls launch. Without it the ranks write
// to where this process writes.
using OutputCallback = Callback<void(int rank, bool is_stderr, const std::string& line)>;

struct RankExit {
  int rank = 0;
  std::int64_t pid = -1;
  int code = 0;  // 128 + signal for signals
  int signal = 0;
  bool was_stopped = false;  // by launch, after another rank had failed or on request
  bool is_stuck = false;     // still there after SIGKILL
  std::string error;         // what it left with write_error_file

  // "rank 1 (pid 71) was killed by signal 11 (SIGSEGV)", or "... exited with code 3: all_reduce: ..."
  std::string to_string() const;
};

struct LaunchResult {
  int exit_code = 0;            // of the rank that failed first; 0 if none did
  std::vector<RankExit> ranks;  // by rank
  int first_failure = -1;       // rank
  // Empty if no rank failed; else some lines: the first failure, what became of the others.
  std::string summary() const;
};

// Runs `command` nproc times with the variables that torchrun sets, and waits until all have ended. When one fails, the
// others get SIGTERM, and after the grace SIGKILL. No rank outlives this process, not even if it is killed.
// Throws InvalidArgument for options that make no sense, IoError where the program cannot be started.
LaunchResult launch(const LaunchOptions& options, OutputCallback on_line = {});

// While it lives, SIGINT, SIGTERM, SIGHUP and SIGQUIT of this thread come out of fd(), for LaunchOptions::stop_fd. To be
// made before other threads are.
class StopSignals {
 public:
  StopSignals();
  ~StopSignals();
  StopSignals(const StopSignals&) = delete;
  StopSignals& operator=(const StopSignals&) = delete;
  int fd() const { return fd_; }

 private:
  int fd_ = -1;
  std::vector<unsigned char> before_;  // the thread's signal mask
};

// For a rank that ends because of an error: leaves `message` for the launcher's summary (lockstep-run, torchrun). Without
// a launcher it does nothing. Never throws.
void write_error_file(const std::string& message);

// Cores this process can really use: its affinity, and its cgroup's quota rounded up.
int usable_cores();

}  // namespace lockstep::inline LOCKSTEP_ABI::parallel
