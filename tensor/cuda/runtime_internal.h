// The CUDA runtime for the rest of tensor/cuda/: checked calls, one stream per device, stream-ordered memory.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <memory>
#include <string>
#include <type_traits>

#include "lockstep/tensor/memory/accelerator_internal.h"

namespace lockstep::cuda {

// Throws DeviceError with CUDA's own text unless `status` is success. `call` is the failed call.
void check(cudaError_t status, const char* call);
// Ignores an error that cannot be reported, in destructors, and clears it so that the next launch does not report it.
void forget(cudaError_t status) noexcept;

// Owns an object of the runtime or of a CUDA library, which kDestroy destroys.
template <auto kDestroy>
struct Destroy {
  void operator()(auto* object) const {
    if constexpr (std::is_same_v<decltype(kDestroy(object)), cudaError_t>)
      forget(kDestroy(object));
    else
      static_cast<void>(kDestroy(object));
  }
};
template <class T, auto kDestroy>
using Owned = std::unique_ptr<std::remove_pointer_t<T>, Destroy<kDestroy>>;

// Checks a launch. With LOCKSTEP_CUDA_SYNC=1 waits for the kernel, so that its failure is reported under its own name.
void check_launch(const char* op);

int device_count();
std::string why_no_device();

// Makes a device current for this thread.
void set_device(int index);
// Makes a device in use current, for calls that need any device: otherwise the call would allocate memory of the first
// one.
void set_any_device();
int current_device();
// The stream of the current device, on which all of its work is launched.
cudaStream_t stream();

// Makes a device current and restores the previous one at the end, if there was one. A device that is not in use is
// not made current: that would take hundreds of megabytes of its memory.
class DeviceGuard {
 public:
  explicit DeviceGuard(int index);
  ~DeviceGuard();
  DeviceGuard(const DeviceGuard&) = delete;
  DeviceGuard& operator=(const DeviceGuard&) = delete;

 private:
  int before_;
};

// Allocates and frees on the current device, in the order of its stream.
void* allocate(std::size_t bytes);
void deallocate(void* data, std::size_t bytes) noexcept;
// As Accelerator::allocate_unordered.
void* allocate_unordered(std::size_t bytes);
AllocatorStats stats(int index);
void reset_peak(int index);
void empty_cache(int index);  // does nothing for a device that is not in use

// Starts capture mode: this thread captures on the current device, and memory comes from `memory`. Null ends it.
void set_capture(CaptureMemory* memory);
bool is_capturing();  // true if this thread captures on its current device
// Throws InvalidArgument while this thread captures: `op` would wait for the device.
void forbid_in_capture(const char* op);

// The current device's Fault (fault_internal.h) in pinned memory: kernels write it and the host reads it.
inline constexpr std::size_t kFaultBytes = 64;
void* fault_memory();

}  // namespace lockstep::cuda
