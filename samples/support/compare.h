// Mode compare: the same training in every mode, and what differs.
#pragma once

#include "support/options.h"
#include "support/program.h"

namespace samples {

// Trains in all modes, each in a folder of its own below options.out, and prints a table of the results. Fails unless
// accumulate, dp and ddp end with the same bits. Throws lockstep::InvalidArgument for a split that does not promise
// them.
int compare(const Options& options, Train train);

}  // namespace samples
