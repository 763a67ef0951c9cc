// The main function of all sample trainers.
#pragma once

#include "support/options.h"

namespace samples {

// Trains in the options' mode and returns main's exit code.
using Train = int (*)(const Options& options);

// The body of main: parses the command line and trains, in this process or in ranks, in one mode or in all of them.
// Prints errors to stderr.
int run_program(int argc, char** argv, const Options& defaults, Train train);

}  // namespace samples
