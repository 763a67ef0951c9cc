// The main function of all sample trainers.
#pragma once

#include "support/options.h"

namespace samples {

// Trains with the options' strategy and returns main's exit code.
using Train = int (*)(const Options& options);

// The body of main: parses the command line and trains, in this process or in ranks, with one strategy or with several.
// Prints errors to stderr.
int run_program(int argc, char** argv, const Options& defaults, Train train);

}  // namespace samples
