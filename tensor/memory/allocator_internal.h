// Host memory for storages. Small blocks come from small_blocks.h. Larger ones are kept in a process-wide cache of
// size classes when freed, so that a training step reuses the blocks (and pages) of the step before. Not installed:
// users see it through Storage and allocator_stats.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "lockstep/tensor/memory/storage.h"

namespace lockstep {

// Counts the allocations of one device, from any thread.
class AllocationCounters {
 public:
  void add_communication(std::int64_t bytes) { communication_.fetch_add(bytes, std::memory_order_relaxed); }
  void add(std::size_t bytes) {
    const auto size = static_cast<std::int64_t>(bytes);
    allocations_.fetch_add(1, std::memory_order_relaxed);
    const std::int64_t now = allocated_.fetch_add(size, std::memory_order_relaxed) + size;
    std::int64_t peak = peak_.load(std::memory_order_relaxed);
    while (now > peak && !peak_.compare_exchange_weak(peak, now, std::memory_order_relaxed)) {
    }
  }
  void remove(std::size_t bytes) { allocated_.fetch_sub(static_cast<std::int64_t>(bytes), std::memory_order_relaxed); }
  void reset_peak() { peak_.store(allocated_.load(std::memory_order_relaxed), std::memory_order_relaxed); }
  AllocatorStats stats(std::int64_t cached_bytes) const {
    return {.allocated_bytes = allocated_.load(std::memory_order_relaxed),
            .peak_bytes = peak_.load(std::memory_order_relaxed),
            .allocations = allocations_.load(std::memory_order_relaxed),
            .cached_bytes = cached_bytes,
            .communication_bytes = communication_.load(std::memory_order_relaxed)};
  }

 private:
  std::atomic<std::int64_t> allocated_{0}, peak_{0}, allocations_{0}, communication_{0};
};

namespace cpu {

// Allocates at least `bytes`, aligned as by malloc, for a storage of `data_bytes`, which are counted. Throws
// DeviceError, naming both sizes, if there is no memory.
void* allocate(std::size_t bytes, std::size_t data_bytes, int device_index);
void deallocate(void* block, std::size_t bytes, std::size_t data_bytes, int device_index);
// Counts memory that a process group has allocated, or with negative `bytes` freed.
void count_communication(std::int64_t bytes, int device_index);

AllocatorStats stats(int device_index);
void reset_peak(int device_index);
void empty_cache();

}  // namespace cpu
}  // namespace lockstep
