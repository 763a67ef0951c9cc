// What the rest of the library does differently while a CUDA graph is captured (cuda_graph.h): memory comes from the graph's
// arena, what is freed waits, what would wait for the device is refused, and numbers that change from step to step are read
// in the device's memory. Not installed.
#pragma once

#include <cstddef>
#include <new>
#include <type_traits>
#include <utility>

#include "lockstep/tensor/callback.h"
#include "lockstep/tensor/storage.h"

namespace lockstep::capture {

// Whether the calling thread captures on the device.
bool is_active(Device device);
// Memory for a tensor. Throws DeviceError where another thread captures on the device; null where nobody does.
Ref<Storage> allocate(std::size_t bytes, Device device);
// Whether it has taken over the memory, of a tensor older than the capture, to free it later.
bool defer_free(void* data, std::size_t bytes, Device device) noexcept;
// The same for memory of Accelerator::allocate_apart, of any device: giving it back waits for that.
bool defer_free_apart(void* data, Device device) noexcept;
// Throws InvalidArgument where the calling thread captures on the device: `op` would wait for it.
void forbid(const char* op, Device device);

// Memory of the device that holds the bytes of `value` during the first replay, and in each later one what `next` has made
// of them before.
const void* place(const void* value, std::size_t bytes, Callback<void(void*)> next);

// For numbers that kernels read through their member `moving`, a pointer into the device's memory, where it is set.
template <class Numbers, class Next>
void keep_moving(Numbers& numbers, Device device, Next next) {
  static_assert(std::is_trivially_copyable_v<Numbers>);
  if (device.is_cpu() || !is_active(device)) return;
  // Made in place, which leaves the bytes between members alone: equal numbers are equal bytes, and not written again.
  numbers.moving = static_cast<const Numbers*>(
      place(&numbers, sizeof(Numbers), [next = std::move(next)](void* at) mutable { ::new (at) Numbers(next()); }));
}

}  // namespace lockstep::capture
