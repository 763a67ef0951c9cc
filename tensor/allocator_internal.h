// Host memory for storages. Small blocks come from small_blocks.h; larger ones are kept in a process-wide cache of size
// classes when freed, so that a training step finds the blocks (and pages) of the step before. Not installed API:
// users see it through Storage and allocator_stats.
#pragma once

#include <cstddef>

#include "lockstep/tensor/storage.h"

namespace lockstep::cpu {

// At least `bytes`, not aligned beyond malloc's own. Throws DeviceError, naming both sizes, where there is none.
void* allocate(std::size_t bytes, int device_index);
void deallocate(void* block, std::size_t bytes, int device_index);

AllocatorStats stats(int device_index);
void reset_peak(int device_index);
void empty_cache();

}  // namespace lockstep::cpu
