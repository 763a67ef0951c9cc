#include "lockstep/tensor/memory/allocator_internal.h"

#include <bit>
#include <cstdlib>
#include <mutex>
#include <vector>

#ifdef __GLIBC__
#include <malloc.h>
#endif

#include "lockstep/base/check_internal.h"
#include "lockstep/base/small_blocks.h"

namespace lockstep::cpu {

namespace {

constexpr std::size_t kCachedFrom = 4096;  // smaller blocks are kept by each thread (small_blocks.h) and by malloc
constexpr int kClassesPerDoubling = 4;     // a block is at most a quarter too large
constexpr int kClasses = 64 * kClassesPerDoubling;

struct Cache {
  std::mutex mutex;
  std::vector<void*> blocks[kClasses];
  std::int64_t bytes = 0;
};

constinit AllocationCounters counters[kMaxCpuDevices];

Cache& cache() {
  static Cache* instance = new Cache;  // never destroyed: storages in statics may outlive every other static
  return *instance;
}

// Size classes: the power of two below, plus quarters of it.
int class_of(std::size_t bytes) {
  const int log = std::bit_width(bytes - 1) - 1;
  const std::size_t base = std::size_t{1} << log, quarter = base / kClassesPerDoubling;
  return log * kClassesPerDoubling + static_cast<int>((bytes - base + quarter - 1) / quarter);
}

std::size_t class_bytes(int index) {
  const std::size_t base = std::size_t{1} << (index / kClassesPerDoubling);
  return base + base / kClassesPerDoubling * static_cast<std::size_t>(index % kClassesPerDoubling);
}

void* take_cached(int index) {
  const std::lock_guard lock(cache().mutex);
  auto& blocks = cache().blocks[index];
  if (blocks.empty()) return nullptr;
  void* block = blocks.back();
  blocks.pop_back();
  cache().bytes -= static_cast<std::int64_t>(class_bytes(index));
  return block;
}

// Allocates `bytes`, kCachedFrom or more; null if there is no memory.
void* allocate_large(std::size_t bytes) {
  if (bytes >= std::size_t{1} << 62) return nullptr;
  const int index = class_of(bytes);
  if (void* cached = take_cached(index)) return cached;
  if (void* fresh = std::malloc(class_bytes(index))) return fresh;
  empty_cache();
  return std::malloc(class_bytes(index));
}

[[noreturn]] void throw_no_memory(std::size_t bytes, int device_index) {
  throw DeviceError(fmt::format("cpu: out of memory: {} bytes requested, {} bytes live on this device", bytes,
                                stats(device_index).allocated_bytes));
}

}  // namespace

void* allocate(std::size_t bytes, std::size_t data_bytes, int device_index) {
  void* block = bytes < kCachedFrom ? small_blocks::allocate(bytes) : allocate_large(bytes);
  if (!block) [[unlikely]]
    throw_no_memory(bytes, device_index);
  counters[device_index].add(data_bytes);
  return block;
}

void deallocate(void* block, std::size_t bytes, std::size_t data_bytes, int device_index) {
  counters[device_index].remove(data_bytes);
  if (bytes < kCachedFrom) {
    small_blocks::deallocate(block, bytes);
    return;
  }
  const int index = class_of(bytes);
  const std::lock_guard lock(cache().mutex);
  cache().blocks[index].push_back(block);
  cache().bytes += static_cast<std::int64_t>(class_bytes(index));
}

void count_communication(std::int64_t bytes, int device_index) { counters[device_index].add_communication(bytes); }

AllocatorStats stats(int device_index) {
  const std::lock_guard lock(cache().mutex);
  return counters[device_index].stats(cache().bytes);
}

void reset_peak(int device_index) { counters[device_index].reset_peak(); }

void empty_cache() {
  const std::lock_guard lock(cache().mutex);
  for (auto& blocks : cache().blocks) {
    for (void* block : blocks) std::free(block);
    blocks.clear();
  }
  cache().bytes = 0;
#ifdef __GLIBC__
  malloc_trim(0);  // free() alone keeps blocks that lie between others
#endif
}

}  // namespace lockstep::cpu
