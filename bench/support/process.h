// Runs a program and says what it cost.
#pragma once

#include <string>
#include <utility>
#include <vector>

namespace bench {

struct ProcessResult {
  int exit_code = -1;
  double seconds = 0;  // by the wall clock
  double peak_mb = 0;  // the largest resident set of the program, of one it started, or of us at its start
  std::string output;  // what it wrote to stdout
};

struct ProcessOptions {
  std::vector<std::pair<std::string, std::string>> environment = {};  // added to ours
  bool pin = false;                                                   // to the last core we may use
  bool quiet = false;                                                 // stderr is dropped
};

// Runs arguments[0], found by PATH, to its end. Throws std::runtime_error where no process can be started.
ProcessResult run_process(const std::vector<std::string>& arguments, const ProcessOptions& options = {});

}  // namespace bench
