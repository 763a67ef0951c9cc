/// \file
/// A block of memory on one device, shared by the tensors that view it.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>

#include "lockstep/tensor/device.h"
#include "lockstep/tensor/ref.h"

namespace lockstep {

inline constexpr std::size_t kAlignment = 64;  ///< alignment of every storage, in bytes

class Storage final : public RefCounted<Storage> {
 public:
  /// Uninitialised memory. Throws DeviceError if there is none, NotBuilt for a device that this build does not support.
  static Ref<Storage> allocate(std::size_t bytes, Device device);
  /// Memory that another object owns; `owner` (may be null) is released with the storage.
  static Ref<Storage> wrap(void* data, std::size_t bytes, Device device, std::shared_ptr<void> owner);

  void* data() const { return data_; }
  std::size_t bytes() const { return bytes_; }
  Device device() const { return device_; }
  /// The object that owns the memory; null unless made by wrap().
  const std::shared_ptr<void>& owner() const { return owner_; }

  /// Number of in-place changes. Autograd compares it to detect that a saved tensor was changed.
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
  void* block_;  // this object's memory; on the CPU, unless wrapped, the data follows it in the same block
  std::shared_ptr<void> owner_;
  Device device_;
  bool wrapped_ = false;  // the data is owned by another object
};

/// Statistics of one device's allocator.
struct AllocatorStats {
  std::int64_t allocated_bytes = 0;  ///< in live storages
  std::int64_t peak_bytes = 0;       ///< the maximum of allocated_bytes, since reset_peak if called
  std::int64_t allocations = 0;      ///< number of allocations so far
  std::int64_t cached_bytes = 0;     ///< freed by tensors and kept for reuse (all cpu devices share one cache)
};
AllocatorStats allocator_stats(Device device = {});
void reset_peak_bytes(Device device = {});
/// Returns cached memory to the operating system.
void empty_cache();

}  // namespace lockstep
