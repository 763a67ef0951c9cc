// Strategy compare: trains the same model with several strategies and compares the results.
#pragma once

#include "support/options.h"
#include "support/program.h"

namespace samples {

// Trains with single, accumulate, dp and ddp, or with options.compared, with one thread for each device, each strategy
// in its own folder below options.out, and prints a table of the results: losses and bytes, or for options.compared memory
// and bytes. Fails unless all but single end with the same bits. Throws lockstep::InvalidArgument for a split that does
// not guarantee equal bits.
int compare(const Options& options, Train train);

}  // namespace samples
