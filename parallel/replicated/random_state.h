/// \file
/// Random numbers over ranks: each rank counts only what its own micro-batches have drawn.
#pragma once

#include "lockstep/parallel/comm/process_group.h"

namespace lockstep::parallel {

/// Gives every rank the counters of all ranks' micro-batches, so that a checkpoint that one of them writes goes on bit
/// for bit with any number of ranks. All ranks call it, before they save. Throws InvalidArgument where their seeds
/// differ.
void share_random_state(ProcessGroup& group);

}  // namespace lockstep::parallel
