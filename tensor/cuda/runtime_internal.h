// The CUDA runtime as the rest of tensor/cuda/ uses it: every call checked, one stream a device, stream-ordered memory.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <string>

#include "lockstep/tensor/accelerator_internal.h"

namespace lockstep::cuda {

// Throws DeviceError with CUDA's own text unless `status` is success. `call` is what failed.
void check(cudaError_t status, const char* call);
// Where there is nobody to tell: at the end of things. The next launch is not blamed for it.
void forget(cudaError_t status) noexcept;
// After a launch. With LOCKSTEP_CUDA_SYNC=1 waits for the kernel, so that its failure is told under its own name.
void check_launch(const char* op);

int device_count();
std::string why_no_device();

// Makes a device this thread's current one.
void set_device(int index);
// One that is in use, for calls that need any: a thread without one would take memory of the first.
void set_any_device();
int current_device();
// The stream of the current device, on which all of its work is started.
cudaStream_t stream();

// Makes a device current, and the one before at the end, if there was one. A device that nobody asked for is left alone:
// making it current would take hundreds of megabytes of its memory.
class DeviceGuard {
 public:
  explicit DeviceGuard(int index);
  ~DeviceGuard();
  DeviceGuard(const DeviceGuard&) = delete;
  DeviceGuard& operator=(const DeviceGuard&) = delete;

 private:
  int before_;
};

// On the current device, in the order of its stream.
void* allocate(std::size_t bytes);
void deallocate(void* data, std::size_t bytes) noexcept;
AllocatorStats stats(int index);
void reset_peak(int index);
void empty_cache(int index);  // of a device that is in use; nothing otherwise

// This thread captures on the current device, where memory comes from `memory` meanwhile; null: no longer.
void set_capture(CaptureMemory* memory);
bool is_capturing();  // this thread, on its current device
// Throws InvalidArgument where that is so: `op` would wait for the device.
void forbid_in_capture(const char* op);

// The current device's place for a Fault (fault.h): pinned, so that kernels write it and the host reads it.
inline constexpr std::size_t kFaultBytes = 64;
void* fault_memory();

}  // namespace lockstep::cuda
