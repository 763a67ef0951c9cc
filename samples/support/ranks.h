// Strategies with ranks without a launcher: the program starts itself once for each rank.
#pragma once

#include <string>

#include "support/options.h"

namespace samples {

// Whether a launcher (lockstep-run, torchrun, mpirun, srun, or start_ranks) has started this process as one of several.
bool is_rank();
// Starts this program options.nproc times, with the same strategy and arguments; only rank 0 prints. Forwards SIGINT
// (Ctrl-C) and SIGTERM. Prints a description of the first rank that failed to stderr, and returns its exit code.
int start_ranks(const Options& options);
// Prints an error to stderr, or passes it to the launcher that prints it.
void report_error(const std::string& program, const std::string& message);

}  // namespace samples
