// Runs a program and measures its cost.
#pragma once

#include <string>
#include <utility>
#include <vector>

namespace bench {

struct ProcessResult {
  int exit_code = -1;
  double seconds = 0;  // by the wall clock
  double peak_mb = 0;  // the largest resident set of the program, of its children, or of this process at the start
  std::string output;  // stdout of the program
};

struct ProcessOptions {
  std::vector<std::pair<std::string, std::string>> environment = {};  // added to our own
  bool pin = false;                                                   // to the last available core
  bool quiet = false;                                                 // drops stderr
};

// Runs arguments[0], found by PATH, to its end. Throws std::runtime_error if no process can be started.
ProcessResult run_process(const std::vector<std::string>& arguments, const ProcessOptions& options = {});

}  // namespace bench
