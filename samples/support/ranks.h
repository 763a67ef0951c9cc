// Mode ddp by itself: the program starts itself once for each rank.
#pragma once

#include <string>

#include "support/options.h"

namespace samples {

// Whether a launcher (lockstep-run, torchrun, mpirun, srun, or start_ranks) has started this process as one of several.
bool is_rank();
// Runs this program in mode ddp, options.nproc times, with the arguments it was given; only rank 0 prints. Ctrl-C and
// SIGTERM are handed on. Returns the exit code of the first rank that failed, which is then described on stderr.
int start_ranks(const Options& options);
// To stderr, and to a launcher that wants to tell it itself.
void report_error(const std::string& program, const std::string& message);

}  // namespace samples
