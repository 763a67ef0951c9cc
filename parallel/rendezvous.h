// How the ranks of a job find each other: from `init_method` and the environment to rank, size and a store.
#pragma once

#include "lockstep/parallel/process_group.h"

namespace lockstep::parallel {

// Resolves `options` (env:// reads the variables that torchrun, mpirun and srun set; or rank, world_size and store given
// directly) and meets the other ranks' store. Duplicate ranks, ranks that never arrive and stale runs are CommErrors that
// name them.
Rendezvous rendezvous(const InitOptions& options);

}  // namespace lockstep::parallel
