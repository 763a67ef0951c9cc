// Host memory for storages. Small blocks come from small_blocks.h. Larger ones are kept in a process-wide cache of
// size classes when freed, so that a training step reuses the blocks (and pages) of the step before. Not installed:
// users see it through Storage and allocator_stats.
#pragma once

#include <cstddef>

#include "lockstep/tensor/storage.h"

namespace lockstep::cpu {

// Allocates at least `bytes`, aligned as by malloc. Throws DeviceError, naming both sizes, if there is no memory.
void* allocate(std::size_t bytes, int device_index);
void deallocate(void* block, std::size_t bytes, int device_index);

AllocatorStats stats(int device_index);
void reset_peak(int device_index);
void empty_cache();

}  // namespace lockstep::cpu
