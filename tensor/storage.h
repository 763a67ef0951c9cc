// A block of memory on one device, shared by the tensors that view it.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>

#include "lockstep/tensor/device.h"
#include "lockstep/tensor/ref.h"

namespace lockstep {

inline constexpr std::size_t kAlignment = 64;  // every storage starts on this many bytes

class Storage final : public RefCounted<Storage> {
 public:
  // Uninitialised memory. Throws DeviceError where there is none, NotBuilt for a device this build lacks.
  static Ref<Storage> allocate(std::size_t bytes, Device device);
  // Memory of somebody else's; `owner` (may be null) is released with the storage.
  static Ref<Storage> wrap(void* data, std::size_t bytes, Device device, std::shared_ptr<void> owner);

  void* data() const { return data_; }
  std::size_t bytes() const { return bytes_; }
  Device device() const { return device_; }

  // Counts in-place changes. Autograd compares it to notice that a saved tensor was changed.
  std::uint32_t version() const { return version_.load(std::memory_order_relaxed); }
  void bump_version() const { version_.store(version() + 1, std::memory_order_relaxed); }

  static void destroy(const Storage* storage);

 private:
  static Ref<Storage> allocate_elsewhere(std::size_t bytes, Device device);
  Storage(void* data, std::size_t bytes, Device device, void* block)
      : data_(data), bytes_(bytes), block_(block), device_(device) {}
  ~Storage() = default;

  mutable std::atomic<std::uint32_t> version_{0};
  void* data_;
  std::size_t bytes_;
  void* block_;  // this object's memory; on the CPU, unless wrapped, the data lies behind it in the same block
  std::shared_ptr<void> owner_;
  Device device_;
  bool wrapped_ = false;  // the data is somebody else's
};

// What the allocator of one device holds.
struct AllocatorStats {
  std::int64_t allocated_bytes = 0;  // in live storages
  std::int64_t peak_bytes = 0;       // the most that was ever live, or since reset_peak
  std::int64_t allocations = 0;      // made so far
  std::int64_t cached_bytes = 0;     // freed by tensors and kept for the next ones (all cpu devices share one cache)
};
AllocatorStats allocator_stats(Device device = {});
void reset_peak_bytes(Device device = {});
// Gives cached memory back to the operating system.
void empty_cache();

}  // namespace lockstep
