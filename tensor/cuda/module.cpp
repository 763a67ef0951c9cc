// The module liblockstep_cuda: CUDA devices for the library.
#include <utility>

#include "lockstep/tensor/cuda/fault_internal.h"
#include "lockstep/tensor/cuda/runtime_internal.h"
#include "lockstep/tensor/memory/accelerator_internal.h"

namespace lockstep::cuda {

namespace device {
extern const KernelTable kTable;
}

namespace {

using OwnedGraph = Owned<cudaGraph_t, cudaGraphDestroy>;

class Graph final : public RecordedWork {
 public:
  explicit Graph(OwnedGraph graph) : device_(current_device()), graph_(std::move(graph)) {
    cudaGraphExec_t ready = nullptr;
    check(cudaGraphInstantiate(&ready, graph_.get(), 0), "cudaGraphInstantiate");
    ready_.reset(ready);
  }
  ~Graph() override {  // waits for launches; errors cannot be reported here
    try {
      const DeviceGuard guard(device_);
      forget(cudaStreamSynchronize(stream()));
    } catch (const DeviceError&) {
    }
  }

  void launch() override {
    const DeviceGuard guard(device_);
    check(cudaGraphLaunch(ready_.get(), stream()), "cudaGraphLaunch");
    check_launch("replay");
  }

 private:
  int device_;
  OwnedGraph graph_;
  Owned<cudaGraphExec_t, cudaGraphExecDestroy> ready_;
};

using OwnedEvent = Owned<cudaEvent_t, cudaEventDestroy>;

// An event after all work started on `stream`, of the current device, so far.
OwnedEvent record(cudaStream_t stream, unsigned flags) {
  cudaEvent_t made = nullptr;
  check(cudaEventCreateWithFlags(&made, flags), "cudaEventCreateWithFlags");
  OwnedEvent event(made);
  check(cudaEventRecord(event.get(), stream), "cudaEventRecord");
  return event;
}

class Event final : public DeviceEvent {
 public:
  double seconds_since(const DeviceEvent& earlier) const override {
    const cudaEvent_t start = static_cast<const Event&>(earlier).event_.get(), end = event_.get();
    float milliseconds = 0;
    check(cudaEventSynchronize(start), "cudaEventSynchronize");
    check(cudaEventSynchronize(end), "cudaEventSynchronize");
    check(cudaEventElapsedTime(&milliseconds, start, end), "cudaEventElapsedTime");
    return 1e-3 * static_cast<double>(milliseconds);
  }

 private:
  OwnedEvent event_ = record(stream(), cudaEventDefault);
};

// Makes `later` wait for all work started on `earlier`, a stream of the current device, so far.
void order(cudaStream_t earlier, cudaStream_t later) {
  const OwnedEvent event = record(earlier, cudaEventDisableTiming);  // may be destroyed while a stream waits for it
  check(cudaStreamWaitEvent(later, event.get(), 0), "cudaStreamWaitEvent");
}

class CudaAccelerator final : public Accelerator {
 public:
  int device_count() override { return cuda::device_count(); }
  std::string why_none() override { return why_no_device(); }

  const KernelTable& kernels(int index) override {
    set_device(index);
    return device::kTable;
  }

  void* allocate(std::size_t bytes, int index) override {
    const DeviceGuard guard(index);
    return cuda::allocate(bytes);
  }
  void deallocate(void* data, std::size_t bytes, int index) noexcept override {
    try {
      const DeviceGuard guard(index);
      cuda::deallocate(data, bytes);
    } catch (const DeviceError&) {  // the driver has shut down, which freed the memory
    }
  }
  AllocatorStats stats(int index) override { return cuda::stats(index); }
  void reset_peak(int index) override { cuda::reset_peak(index); }
  void empty_cache() override {
    for (int index = 0; index < cuda::device_count(); ++index) cuda::empty_cache(index);
  }

  void copy(void* to, Device to_device, const void* from, Device from_device, std::size_t bytes) override {
    if (bytes == 0) return;
    const bool arrives = to_device.is_cuda();
    const DeviceGuard guard(arrives ? to_device.index() : from_device.index());
    if (arrives && from_device.is_cuda() && from_device.index() != to_device.index())
      return copy_between(to, to_device.index(), from, from_device.index(), bytes);
    check(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, stream()), "cudaMemcpyAsync");
    if (!arrives || (from_device.is_cpu() && is_read_later(from))) synchronize(current_device());
  }

  void synchronize(int index) override {
    const DeviceGuard guard(index);
    check(cudaStreamSynchronize(stream()), "cudaStreamSynchronize");
    auto* const record = static_cast<Fault*>(fault_memory());
    if (record->kind == Fault::kNone) [[likely]]
      return;
    const Fault fault = *record;
    record->kind = Fault::kNone;
    throw InvalidArgument(describe(fault, index));
  }

  std::unique_ptr<DeviceEvent> record_event(int index) override {
    const DeviceGuard guard(index);
    return std::make_unique<Event>();
  }

  // Thread-local: calls of other threads on other streams, such as allocations, do not invalidate the capture.
  void begin_capture(int index, CaptureMemory& memory) override {
    const DeviceGuard guard(index);
    check(cudaStreamBeginCapture(stream(), cudaStreamCaptureModeThreadLocal), "cudaStreamBeginCapture");
    set_capture(&memory);
  }
  std::unique_ptr<RecordedWork> end_capture(int index) override {
    const DeviceGuard guard(index);
    set_capture(nullptr);
    cudaGraph_t graph = nullptr;
    const cudaError_t status = cudaStreamEndCapture(stream(), &graph);
    OwnedGraph owned(graph);
    check(status, "cudaStreamEndCapture");
    return std::make_unique<Graph>(std::move(owned));
  }
  void* allocate_unordered(std::size_t bytes, int index) override {
    const DeviceGuard guard(index);
    return cuda::allocate_unordered(bytes);
  }
  void deallocate_unordered(void* data, int index) noexcept override {
    try {
      const DeviceGuard guard(index);
      forget(cudaFree(data));
    } catch (const DeviceError&) {  // the driver has shut down, which freed the memory
    }
  }

  bool pin_host(void* data, std::size_t bytes) noexcept override {
    try {
      set_any_device();
    } catch (const DeviceError&) {
      return false;
    }
    const cudaError_t status = cudaHostRegister(data, bytes, cudaHostRegisterPortable);
    forget(status);
    return status == cudaSuccess;
  }
  void unpin_host(void* data) noexcept override {
    try {
      set_any_device();
      forget(cudaHostUnregister(data));
    } catch (const DeviceError&) {  // the driver has shut down, which unpinned the memory
    }
  }
  void* compute_stream(int index) override {
    set_device(index);
    return stream();
  }

 private:
  // Pageable memory is staged before cudaMemcpyAsync returns; pinned memory is read later, and so is any host memory
  // if the device uses the host's page tables.
  static bool is_read_later(const void* data) {
    cudaPointerAttributes attributes{};
    check(cudaPointerGetAttributes(&attributes, data), "cudaPointerGetAttributes");
    int reads_all = 0;
    check(cudaDeviceGetAttribute(&reads_all, cudaDevAttrPageableMemoryAccessUsesHostPageTables, current_device()),
          "cudaDeviceGetAttribute");
    return attributes.type != cudaMemoryTypeUnregistered || reads_all != 0;
  }
  // The copy runs on the target's stream: after the work started on the source so far, and before its later work.
  static void copy_between(void* to, int to_index, const void* from, int from_index, std::size_t bytes) {
    const cudaStream_t target = stream();
    set_device(from_index);
    const cudaStream_t source = stream();
    order(source, target);
    set_device(to_index);
    check(cudaMemcpyPeerAsync(to, to_index, from, from_index, bytes, target), "cudaMemcpyPeerAsync");
    order(target, source);
  }
};

}  // namespace
}  // namespace lockstep::cuda

extern "C" const lockstep::AcceleratorModule* lockstep_accelerator_cuda() {
  static constexpr lockstep::AcceleratorModule module{LOCKSTEP_VERSION, []() -> lockstep::Accelerator* {
                                                        // never destroyed: tensors in statics may outlive it
                                                        static auto* const accelerator =
                                                            new lockstep::cuda::CudaAccelerator;
                                                        return accelerator;
                                                      }};
  return &module;
}
