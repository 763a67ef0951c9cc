#include "lockstep/tensor/memory/storage.h"

#include <new>

#include "lockstep/base/check_internal.h"
#include "lockstep/base/small_blocks.h"
#include "lockstep/base/trace.h"
#include "lockstep/tensor/memory/accelerator_internal.h"
#include "lockstep/tensor/memory/allocator_internal.h"
#include "lockstep/tensor/memory/capture_internal.h"
#include "lockstep/tensor/memory/storage_supplier_internal.h"

namespace lockstep {

namespace {

[[noreturn]] void throw_no_memory(std::size_t bytes, Device device) {
  throw DeviceError(fmt::format("{}: out of memory: {} bytes requested", device.to_string(), bytes));
}

// On the CPU one block holds the Storage, followed by the data at the next aligned address.
constexpr std::size_t kHeader = kAlignment;

constinit thread_local bool is_inferring = false;

std::size_t block_bytes(std::size_t data_bytes) { return data_bytes + kHeader + kAlignment; }

std::byte* align(void* address) {
  const auto value = reinterpret_cast<std::uintptr_t>(address);
  return reinterpret_cast<std::byte*>((value + kAlignment - 1) & ~(kAlignment - 1));
}

}  // namespace

bool inference_mode() { return is_inferring; }
void set_inference_mode(bool on) { is_inferring = on; }

Ref<Storage> Storage::allocate(std::size_t bytes, Device device) {
  static_assert(sizeof(Storage) <= kHeader);
  if (bytes > std::size_t{1} << 61) [[unlikely]]
    throw_no_memory(bytes, device);
  if (!device.is_cpu()) [[unlikely]]
    return allocate_elsewhere(bytes, device);
  void* block = cpu::allocate(block_bytes(bytes), bytes, device.index());
  std::byte* header = align(block);
  return Ref<Storage>::adopt(new (header) Storage(header + kHeader, bytes, device, block, is_inferring));
}

Ref<Storage> Storage::allocate_elsewhere(std::size_t bytes, Device device) {
  if (Ref<Storage> of_graph = capture::allocate(bytes, device)) return of_graph;
  Accelerator& owner = accelerator(device);
  void* const block = small_blocks::allocate(sizeof(Storage));
  if (!block) throw_no_memory(sizeof(Storage), Device());
  try {
    return Ref<Storage>::adopt(new (block)
                                   Storage(owner.allocate(bytes, device.index()), bytes, device, block, is_inferring));
  } catch (...) {
    small_blocks::deallocate(block, sizeof(Storage));
    throw;
  }
}

Ref<Storage> Storage::on_foreign_memory(Kind kind, void* data, std::size_t bytes, Device device,
                                        std::shared_ptr<void> owner) {
  if (device.is_cuda()) accelerator(device);  // throws if there is no such device
  void* const block = small_blocks::allocate(sizeof(Storage));
  if (!block) throw_no_memory(sizeof(Storage), Device());
  auto* storage = new (block) Storage(data, bytes, device, block, /*is_inference=*/false);
  storage->owner_ = std::move(owner);
  storage->kind_ = kind;
  return Ref<Storage>::adopt(storage);
}

Ref<Storage> Storage::wrap(void* data, std::size_t bytes, Device device, std::shared_ptr<void> owner) {
  return on_foreign_memory(Kind::kWrapped, data, bytes, device, std::move(owner));
}

Ref<Storage> Storage::releasable(std::size_t bytes, Device device, std::shared_ptr<StorageSupplier> supplier) {
  LOCKSTEP_CHECK(supplier, "releasable storage: {} bytes on {} without a supplier; pass one", bytes,
                 device.to_string());
  return on_foreign_memory(Kind::kReleasable, nullptr, bytes, device, std::move(supplier));
}

void Storage::require_releasable(const char* op) const {
  LOCKSTEP_CHECK(kind_ == Kind::kReleasable,
                 "{}: this storage of {} bytes on {} keeps its memory; make it with Storage::releasable", op, bytes_,
                 device_.to_string());
}

void Storage::supply(void* data) {
  require_releasable("supply");
  LOCKSTEP_CHECK(data && reinterpret_cast<std::uintptr_t>(data) % kAlignment == 0,
                 "supply: the memory is at {}; expected an address that is a multiple of {}", data, kAlignment);
  data_ = data;
}

void Storage::release() {
  require_releasable("release");
  data_ = nullptr;
}

// Not part of data(), whose inlined code in every operation is then one test.
void Storage::request_memory() {
  if (kind_ != Kind::kReleasable || bytes_ == 0) return;
  StorageSupplier& supplier = *static_cast<StorageSupplier*>(owner_.get());
  supplier.need(*this);
  LOCKSTEP_CHECK(data_, "storage: the supplier of {} bytes on {} supplied no memory; call supply() in need()", bytes_,
                 device_.to_string());
}

void Storage::destroy(const Storage* storage) {
  void* const block = storage->block_;
  void* const data = storage->data_;
  const std::size_t bytes = storage->bytes_;
  const Device device = storage->device_;
  const bool owned = storage->kind_ == Kind::kOwned;
  storage->~Storage();
  if (device.is_cpu() && owned) [[likely]]
    return cpu::deallocate(block, block_bytes(bytes), bytes, device.index());
  if (owned && !capture::defer_free(data, bytes, device)) accelerator(device).deallocate(data, bytes, device.index());
  small_blocks::deallocate(block, sizeof(Storage));
}

AllocatorStats allocator_stats(Device device) {
  return device.is_cpu() ? cpu::stats(device.index()) : accelerator(device).stats(device.index());
}

void reset_peak_bytes(Device device) {
  if (device.is_cpu())
    cpu::reset_peak(device.index());
  else
    accelerator(device).reset_peak(device.index());
}

void empty_cache() {
  cpu::empty_cache();
  if (Accelerator* const opened = opened_accelerator()) opened->empty_cache();
}

void trace_memory(Device device) {
  if (!is_tracing()) return;
  const AllocatorStats stats = allocator_stats(device);
  trace_event(TraceKind::kMemory, "memory", TraceTime::now(),
              {.bytes = stats.allocated_bytes + stats.communication_bytes});
  trace_event(TraceKind::kMemory, "peak memory", TraceTime::now(),
              {.bytes = stats.peak_bytes + stats.communication_bytes});
}

}  // namespace lockstep
