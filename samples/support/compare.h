// Mode compare: trains the same model in every mode and compares the results.
#pragma once

#include "support/options.h"
#include "support/program.h"

namespace samples {

// Trains in all modes, with one thread for each device, each mode in its own folder below options.out, and prints a
// table of the results. Fails unless accumulate, dp and ddp end with the same bits. Throws lockstep::InvalidArgument for
// a split that does not guarantee equal bits.
int compare(const Options& options, Train train);

}  // namespace samples
