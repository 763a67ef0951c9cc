// Devices other than the CPU: the interface of one kind of device, apart from its kernels. CUDA is the module
// liblockstep_cuda, opened when a program first uses one of its devices. Not installed.
#pragma once

#include <cstddef>
#include <memory>
#include <string>

#include "lockstep/tensor/memory/storage.h"

namespace lockstep {

struct KernelTable;

// Supplies memory to kernels while a graph is captured. Freed memory may be reused immediately: launches run in order.
class CaptureMemory {
 public:
  virtual void* allocate(std::size_t bytes) = 0;
  virtual void deallocate(void* data) noexcept = 0;

 protected:
  ~CaptureMemory() = default;
};

// The work recorded between begin_capture and end_capture.
class RecordedWork {
 public:
  virtual ~RecordedWork() = default;
  virtual void launch() = 0;  // starts all the work on the device it was recorded on
};

// A point in a device's sequence of work.
class DeviceEvent {
 public:
  virtual ~DeviceEvent() = default;
  // Waits for both events. `earlier` must be of the same device.
  virtual double seconds_since(const DeviceEvent& earlier) const = 0;
};

// Work runs asynchronously, on each device in the order in which it was started.
class Accelerator {
 public:
  virtual ~Accelerator() = default;

  virtual int device_count() = 0;
  // The reason why device_count() is 0: "no driver". Called only then.
  virtual std::string why_none() = 0;
  // The kernels. Calls through the table run on that device until this thread calls kernels() for another one.
  virtual const KernelTable& kernels(int index) = 0;

  // Allocates in stream order: work started from now on may use the memory, and it is freed after the work started
  // before the free. `allocate` throws DeviceError, naming the sizes, if there is no memory.
  virtual void* allocate(std::size_t bytes, int index) = 0;
  virtual void deallocate(void* data, std::size_t bytes, int index) noexcept = 0;
  virtual AllocatorStats stats(int index) = 0;
  virtual void reset_peak(int index) = 0;
  virtual void empty_cache() = 0;

  // Starts a copy; at least one end is a device of this kind. A copy to or from the CPU is complete on return.
  virtual void copy(void* to, Device to_device, const void* from, Device from_device, std::size_t bytes) = 0;
  // Waits for all work started on the device. Throws DeviceError if something failed, InvalidArgument if a kernel
  // found a wrong value (an index outside its range).
  virtual void synchronize(int index) = 0;
  // Records an event after all work started on the device so far.
  virtual std::unique_ptr<DeviceEvent> record_event(int index) = 0;

  // From now on, kernels and copies within the device that this thread starts are recorded instead of run. No other
  // call for the device is allowed until end_capture, which throws DeviceError if there was one.
  virtual void begin_capture(int index, CaptureMemory& memory) = 0;
  virtual std::unique_ptr<RecordedWork> end_capture(int index) = 0;
  // Allocates outside stream order, also while capturing: the memory is usable immediately. Freeing it waits for the
  // device.
  virtual void* allocate_unordered(std::size_t bytes, int index) = 0;
  virtual void deallocate_unordered(void* data, int index) noexcept = 0;

  // Pins host memory, so that copies to and from it run at full speed. Returns false if that is impossible (the system
  // limits pinned memory): copies are slower then.
  virtual bool pin_host(void* data, std::size_t bytes) noexcept = 0;
  virtual void unpin_host(void* data) noexcept = 0;
  // The stream on which a device's work is started, in its own library's type (cudaStream_t). Makes the device current
  // for this thread.
  virtual void* compute_stream(int index) = 0;
};

// The result of the module's entry lockstep_accelerator_cuda().
struct AcceleratorModule {
  const char* version;  // the Lockstep version the module was built for; must equal the library's
  Accelerator* (*get)();
};
using AcceleratorEntry = const AcceleratorModule*();

// Throws InvalidArgument: a deferred parameter has no values.
[[noreturn]] void throw_deferred();

// The accelerator of a device other than a CPU. Throws NotBuilt if this build does not support it, DeviceError if
// there is no such device.
Accelerator& accelerator(Device device);
Accelerator* opened_accelerator();  // null until an accelerator is opened
// Replaces CUDA's accelerator from now on; null restores the module. For tests on machines without a GPU.
void set_accelerator(Accelerator* instead);

}  // namespace lockstep
