// Devices beside the CPU: what such a kind of device offers apart from its kernels. CUDA is the module liblockstep_cuda,
// opened when a program first asks for one of its devices. Not installed.
#pragma once

#include <cstddef>
#include <memory>
#include <string>

#include "lockstep/tensor/kernels_internal.h"
#include "lockstep/tensor/storage.h"

namespace lockstep {

// Where kernels get memory for their own use while a graph is captured. What is given back may be handed out again at once:
// launches run in turn.
class CaptureMemory {
 public:
  virtual void* allocate(std::size_t bytes) = 0;
  virtual void deallocate(void* data) noexcept = 0;

 protected:
  ~CaptureMemory() = default;
};

// What was recorded between begin_capture and end_capture.
class RecordedWork {
 public:
  virtual ~RecordedWork() = default;
  virtual void launch() = 0;  // starts all of it, on the device it was recorded on
};

// A moment in a device's work.
class DeviceEvent {
 public:
  virtual ~DeviceEvent() = default;
  // Waits for both. `earlier` is of the same device.
  virtual double seconds_since(const DeviceEvent& earlier) const = 0;
};

// What is started on a device runs in the order in which it was started, and later than the call that started it.
class Accelerator {
 public:
  virtual ~Accelerator() = default;

  virtual int device_count() = 0;
  // Why there is none: "no driver". Asked where device_count() is 0.
  virtual std::string why_none() = 0;
  // The kernels. What this thread calls from the table then runs on that device, until it asks for another.
  virtual const KernelTable& kernels(int index) = 0;

  // Memory that may be used, by what is started from now on; and freed, after all that was started before. `allocate`
  // throws DeviceError, naming the sizes, where there is none.
  virtual void* allocate(std::size_t bytes, int index) = 0;
  virtual void deallocate(void* data, std::size_t bytes, int index) noexcept = 0;
  virtual AllocatorStats stats(int index) = 0;
  virtual void reset_peak(int index) = 0;
  virtual void empty_cache() = 0;

  // Starts a copy; at least one end is a device of this kind. One that involves the CPU has been made on return.
  virtual void copy(void* to, Device to_device, const void* from, Device from_device, std::size_t bytes) = 0;
  // Returns when all that was started on the device has ended. Throws DeviceError where something failed, InvalidArgument
  // where a kernel met a wrong value (an index outside its range).
  virtual void synchronize(int index) = 0;
  // The moment when all that was started on the device so far has ended.
  virtual std::unique_ptr<DeviceEvent> record_event(int index) = 0;

  // What this thread starts on the device from now on is recorded instead of being run: kernels, and copies within the
  // device. Nothing else may be asked of it until end_capture, which throws DeviceError where something else was.
  virtual void begin_capture(int index, CaptureMemory& memory) = 0;
  virtual std::unique_ptr<RecordedWork> end_capture(int index) = 0;
  // Memory outside of the order of what is started, also while capturing: it is there at once and until it is given back,
  // which waits for the device.
  virtual void* allocate_apart(std::size_t bytes, int index) = 0;
  virtual void deallocate_apart(void* data, int index) noexcept = 0;

  // Makes copies to and from this host memory as fast as they can be, until it is unpinned. False where that cannot be
  // (the system limits it): then they are slower.
  virtual bool pin_host(void* data, std::size_t bytes) noexcept = 0;
  virtual void unpin_host(void* data) noexcept = 0;
  // On which a device's work is started, as its own library calls it (cudaStream_t). Makes the device this thread's.
  virtual void* compute_stream(int index) = 0;
};

// What the module's entry lockstep_accelerator_cuda() returns.
struct AcceleratorModule {
  const char* version;  // it was built for; no other is used
  Accelerator* (*get)();
};
using AcceleratorEntry = const AcceleratorModule*();

// That of a device that is not a CPU's. Throws NotBuilt where this build has none, DeviceError where there is no such
// device.
Accelerator& accelerator(Device device);
Accelerator* opened_accelerator();  // null where none was asked for yet
// Takes `instead` for CUDA's from now on, or the module again (null): for tests on machines without a GPU.
void set_accelerator(Accelerator* instead);

}  // namespace lockstep
