// Ranks for tests: as threads of this process, or as processes of their own. Both have a deadline, so that ranks which
// wait for each other forever fail instead of hanging.
#pragma once

#include <chrono>
#include <functional>
#include <string>
#include <vector>

// Two minutes, or what LOCKSTEP_RANK_DEADLINE says in seconds: for runs that are longer than ctest's.
std::chrono::milliseconds rank_deadline();

// Runs fn(0) to fn(n-1) on n threads and returns when all have ended. Rethrows the exception that was thrown first, a
// lockstep::Error with "rank 1: " before its text. Past the deadline the program ends and names the ranks that hang.
void run_threads(int n, const std::function<void(int rank)>& fn, std::chrono::milliseconds deadline = rank_deadline());

// How a process ended.
struct ExitStatus {
  int code = -1;           // of _exit; -1 where a signal ended it
  int signal = 0;          // that ended it; SIGKILL, too, where the deadline passed
  bool timed_out = false;  // still ran at the deadline, and was killed
  std::string error;       // what its uncaught exception said, without it empty

  bool ok() const { return code == 0; }
  // "exit code 1: all_reduce: ...", for INFO and CAPTURE.
  std::string to_string() const;
};

// Runs fn(0) to fn(n-1) in n forked processes and returns how they ended, in the order of ranks. A process exits with 0,
// or with 1 after an uncaught exception (also printed to stderr) or a failed CHECK. Call it while no other thread runs:
// a fork has only the thread that forks. Processes die with this one.
std::vector<ExitStatus> run_processes(int n, const std::function<void(int rank)>& fn,
                                      std::chrono::milliseconds deadline = rank_deadline());

// run_processes, and a failed check for each rank that did not exit with 0.
void check_processes(int n, const std::function<void(int rank)>& fn,
                     std::chrono::milliseconds deadline = rank_deadline());
