/// \file
/// A block of memory on one device, shared by the tensors that view it.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>

#include "lockstep/base/device.h"
#include "lockstep/base/ref.h"

namespace lockstep {

class StorageSupplier;

inline constexpr std::size_t kAlignment = 64;  ///< alignment of every storage, in bytes

class Storage final : public RefCounted<Storage> {
 public:
  /// Uninitialised memory. Throws DeviceError if there is none, NotBuilt for a device that this build does not support.
  static Ref<Storage> allocate(std::size_t bytes, Device device);
  /// Memory that another object owns; `owner` (may be null) is released with the storage.
  static Ref<Storage> wrap(void* data, std::size_t bytes, Device device, std::shared_ptr<void> owner);
  /// Memory that another object supplies and releases, again and again; tensors on the storage stay valid. Starts
  /// without memory. See StorageSupplier (tensor/memory/storage_supplier_internal.h).
  static Ref<Storage> releasable(std::size_t bytes, Device device, std::shared_ptr<StorageSupplier> supplier);

  /// The first byte; may be null without bytes or values. Asks the supplier for released memory, whose error it throws.
  void* data() {
    if (!data_) [[unlikely]]
      request_memory();
    return data_;
  }
  std::size_t bytes() const { return bytes_; }
  Device device() const { return device_; }
  /// The object that owns or supplies the memory; null for a storage made by allocate().
  const std::shared_ptr<void>& owner() const { return owner_; }

  /// Number of in-place changes. Autograd compares it to detect that a saved tensor was changed.
  std::uint32_t version() const { return version_.load(std::memory_order_relaxed); }
  void bump_version() const { version_.store(version() + 1, std::memory_order_relaxed); }

  /// Made by allocate() while the thread had an InferenceGuard: autograd refuses to save it.
  bool is_inference() const { return is_inference_; }

  /// Gives a releasable storage its memory: `data` is aligned to kAlignment, and the caller keeps it alive until
  /// release(). Does not count as a change of the elements. Throws InvalidArgument for a storage of another kind.
  void supply(void* data);
  /// Takes the memory away. No operation may be using it, and no address may be kept.
  void release();
  /// False for a releasable storage while it has no memory.
  bool is_present() const { return data_ != nullptr || kind_ != Kind::kReleasable; }

  static void destroy(const Storage* storage);

 private:
  enum class Kind : std::uint8_t { kOwned, kWrapped, kReleasable };

  void request_memory();
  void require_releasable(const char* op) const;
  static Ref<Storage> on_foreign_memory(Kind kind, void* data, std::size_t bytes, Device device,
                                        std::shared_ptr<void> owner);
  static Ref<Storage> allocate_elsewhere(std::size_t bytes, Device device);
  Storage(void* data, std::size_t bytes, Device device, void* block, bool is_inference)
      : data_(data), bytes_(bytes), block_(block), device_(device), is_inference_(is_inference) {}
  ~Storage() = default;

  mutable std::atomic<std::uint32_t> version_{0};
  void* data_;  // null while a releasable storage has no memory
  std::size_t bytes_;
  void* block_;                  // this object's memory; on the CPU the data that it owns follows in the same block
  std::shared_ptr<void> owner_;  // of a releasable storage: the supplier
  Device device_;
  Kind kind_ = Kind::kOwned;
  bool is_inference_;
};

/// Whether storages that this thread allocates are of inference; prefer InferenceGuard (autograd/grad_mode.h).
bool inference_mode();
void set_inference_mode(bool on);

/// Statistics of one device's allocator.
struct AllocatorStats {
  std::int64_t allocated_bytes = 0;  ///< in live storages, without headers and rounding
  std::int64_t peak_bytes = 0;       ///< the maximum of allocated_bytes, since reset_peak if called
  std::int64_t allocations = 0;      ///< number of allocations so far
  std::int64_t cached_bytes = 0;     ///< freed by tensors and kept for reuse (all cpu devices share one cache)
  /// This process's part of ProcessGroup::empty on shm and local, in live tensors; not in the other counts. Elsewhere
  /// 0: that memory is in allocated_bytes, except for NCCL's.
  std::int64_t communication_bytes = 0;
};
AllocatorStats allocator_stats(Device device = {});
void reset_peak_bytes(Device device = {});
/// Returns cached memory to the operating system.
void empty_cache();
/// Records the statistics of a device in the trace (base/trace.h), with communication memory, as two events: the bytes
/// in live tensors ("memory") and their maximum since the program called reset_peak_bytes ("peak memory").
void trace_memory(Device device = {});

}  // namespace lockstep
