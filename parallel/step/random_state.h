/// \file
/// The random state of all ranks: each rank counts only the numbers that its own micro-batches have drawn.
#pragma once

#include "lockstep/parallel/comm/process_group.h"

namespace lockstep::parallel {

/// Gives every rank the random counters of all ranks' micro-batches, so that training continues bit for bit from a
/// checkpoint of one rank, with any number of ranks. All ranks must call this before one saves. Throws InvalidArgument
/// if their seeds differ. `caller` is named in errors if another rank calls something else.
void share_random_state(ProcessGroup& group, const char* caller = "share_random_state");

}  // namespace lockstep::parallel
