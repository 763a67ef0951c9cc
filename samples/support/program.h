// What the sample trainers' main functions share.
#pragma once

#include "support/options.h"

namespace samples {

// A training run with the options' mode. Returns main's exit code.
using Train = int (*)(const Options& options);

// main: parses the command line and trains, here or in ranks, in one mode or in all of them. Errors go to
// stderr.
int run_program(int argc, char** argv, const Options& defaults, Train train);

}  // namespace samples
