// Ranks for tests, as threads of this process or as processes. Both have a deadline, so that ranks that wait for each
// other forever fail instead of hanging.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

// Two minutes, or LOCKSTEP_RANK_DEADLINE in seconds, for runs that take longer than those of ctest.
std::chrono::milliseconds rank_deadline();

// Runs fn(0) to fn(n-1) on n threads and returns when all have ended. Rethrows the first exception, a lockstep::Error
// with "rank 1: " before its text. After the deadline the program aborts and names the ranks that hang.
void run_threads(int n, const std::function<void(int rank)>& fn, std::chrono::milliseconds deadline = rank_deadline());

// How a process ended.
struct ExitStatus {
  int code = -1;           // exit code; -1 if a signal ended the process
  int signal = 0;          // the signal that ended the process; SIGKILL also after the deadline
  bool timed_out = false;  // still ran at the deadline, and was killed
  std::string error;       // text of its uncaught exception, or empty

  bool ok() const { return code == 0; }
  // "exit code 1: all_reduce: ...", for INFO and CAPTURE.
  std::string to_string() const;
};

// Runs fn(0) to fn(n-1) in n forked processes and returns how they ended, in rank order. A process exits with 0, or
// with 1 after an uncaught exception (also printed to stderr) or a failed CHECK. Fails if another thread runs: a fork
// would copy the locks that it holds, but not the thread. The processes die with this one.
std::vector<ExitStatus> run_processes(int n, const std::function<void(int rank)>& fn,
                                      std::chrono::milliseconds deadline = rank_deadline());

// Numbers that processes forked later send each other, for example to say that they have come to some point. Each is
// received once, in the order they were sent.
class NumberPipe {
 public:
  NumberPipe();
  ~NumberPipe();
  NumberPipe(const NumberPipe&) = delete;
  NumberPipe& operator=(const NumberPipe&) = delete;
  void send(std::int64_t number) const;
  std::int64_t receive() const;  // waits for one

 private:
  int ends_[2];
};

// Calls run_processes, and fails a check for each rank that did not exit with 0.
void check_processes(int n, const std::function<void(int rank)>& fn,
                     std::chrono::milliseconds deadline = rank_deadline());
