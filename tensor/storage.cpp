#include "lockstep/tensor/storage.h"

#include <new>

#include "lockstep/tensor/allocator_internal.h"
#include "lockstep/tensor/check_internal.h"

namespace lockstep::inline LOCKSTEP_ABI {

namespace {

// The one place where a device that this build lacks is noticed.
[[noreturn]] void throw_not_built(Device device) {
  throw NotBuilt(
      fmt::format("{}: this build of Lockstep has no CUDA; use cpu, or a build with CUDA", device.to_string()));
}

[[noreturn]] void throw_no_memory(std::size_t bytes, Device device) {
  throw DeviceError(fmt::format("{}: out of memory: {} bytes asked for", device.to_string(), bytes));
}

void require_cpu(Device device) {
  if (!device.is_cpu()) [[unlikely]]
    throw_not_built(device);
}

// One block holds the Storage, then the data on the next aligned address.
constexpr std::size_t kHeader = kAlignment;

std::size_t block_bytes(std::size_t data_bytes) { return data_bytes + kHeader + kAlignment; }

std::byte* align(void* address) {
  const auto value = reinterpret_cast<std::uintptr_t>(address);
  return reinterpret_cast<std::byte*>((value + kAlignment - 1) & ~(kAlignment - 1));
}

}  // namespace

Ref<Storage> Storage::allocate(std::size_t bytes, Device device) {
  static_assert(sizeof(Storage) <= kHeader);
  require_cpu(device);
  if (bytes > std::size_t{1} << 61) [[unlikely]]
    throw_no_memory(bytes, device);
  void* block = cpu::allocate(block_bytes(bytes), device.index());
  std::byte* header = align(block);
  return Ref<Storage>::adopt(new (header) Storage(header + kHeader, bytes, device, block));
}

Ref<Storage> Storage::wrap(void* data, std::size_t bytes, Device device, std::shared_ptr<void> owner) {
  require_cpu(device);
  void* block = cpu::allocate(kHeader + kAlignment, device.index());
  auto* storage = new (align(block)) Storage(data, bytes, device, block);
  storage->owner_ = std::move(owner);
  storage->wrapped_ = true;
  return Ref<Storage>::adopt(storage);
}

void Storage::destroy(const Storage* storage) {
  void* block = storage->block_;
  const std::size_t bytes = storage->wrapped_ ? kHeader + kAlignment : block_bytes(storage->bytes_);
  const int device_index = storage->device_.index();
  storage->~Storage();
  cpu::deallocate(block, bytes, device_index);
}

AllocatorStats allocator_stats(Device device) {
  require_cpu(device);
  return cpu::stats(device.index());
}

void reset_peak_bytes(Device device) {
  require_cpu(device);
  cpu::reset_peak(device.index());
}

void empty_cache() { cpu::empty_cache(); }

}  // namespace lockstep::inline LOCKSTEP_ABI
