// Hooks for the rest of the library while a CUDA graph is captured (cuda_graph.h): memory comes from the graph's
// arena, frees are deferred, operations that would wait for the device are refused, and values that change from step
// to step are read from the device's memory. Not installed.
#pragma once

#include <cstddef>
#include <new>
#include <type_traits>
#include <utility>

#include "lockstep/base/callback.h"
#include "lockstep/tensor/memory/storage.h"

namespace lockstep::capture {

// True if the calling thread captures on the device.
bool is_active(Device device);
// Allocates memory for a tensor. Returns null if no thread captures on the device. Throws DeviceError if another
// thread does.
Ref<Storage> allocate(std::size_t bytes, Device device);
// Takes over memory of a tensor older than the capture, to free it later; or, if it is `unordered`, memory of
// Accelerator::allocate_unordered, of any device: freeing it waits for the device. Returns false if nothing was taken
// over.
bool defer_free(void* data, std::size_t bytes, Device device, bool unordered = false) noexcept;
// Throws InvalidArgument if the calling thread captures on the device: `op` would wait for the device.
void forbid(const char* op, Device device);

// Returns device memory that holds the bytes of `value` in the first replay. For each later replay `next` updates the
// bytes in place.
const void* place(const void* value, std::size_t bytes, Callback<void(void*)> next);

// For hyperparameters that kernels read through their member `on_device`, a pointer to device memory, if it is set.
template <class Numbers, class Next>
void keep_on_device(Numbers& numbers, Device device, Next next) {
  static_assert(std::is_trivially_copyable_v<Numbers>);
  if (device.is_cpu() || !is_active(device)) return;
  // Updated in place, which keeps the padding bytes: equal hyperparameters are equal bytes, and are not written again.
  numbers.on_device = static_cast<const Numbers*>(
      place(&numbers, sizeof(Numbers), [next = std::move(next)](void* at) mutable { ::new (at) Numbers(next()); }));
}

}  // namespace lockstep::capture
