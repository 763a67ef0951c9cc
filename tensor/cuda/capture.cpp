#include "lockstep/tensor/cuda/capture_internal.h"

#include "lockstep/tensor/check_internal.h"
#include "lockstep/tensor/cuda/runtime_internal.h"

namespace lockstep::cuda {
namespace {

class Graph final : public RecordedWork {
 public:
  // Takes over `graph`.
  explicit Graph(cudaGraph_t graph) : device_(current_device()), graph_(graph) {
    const cudaError_t status = cudaGraphInstantiate(&ready_, graph_, 0);
    if (status != cudaSuccess) forget(cudaGraphDestroy(graph_));
    check(status, "cudaGraphInstantiate");
  }
  ~Graph() override {  // waits for launches; errors cannot be reported here
    try {
      const DeviceGuard guard(device_);
      forget(cudaStreamSynchronize(stream()));
    } catch (const DeviceError&) {
    }
    forget(cudaGraphExecDestroy(ready_));
    forget(cudaGraphDestroy(graph_));
  }
  Graph(const Graph&) = delete;
  Graph& operator=(const Graph&) = delete;

  void launch() override {
    const DeviceGuard guard(device_);
    check(cudaGraphLaunch(ready_, stream()), "cudaGraphLaunch");
    check_launch("replay");
  }

 private:
  int device_;
  cudaGraph_t graph_;
  cudaGraphExec_t ready_ = nullptr;
};

class Event final : public DeviceEvent {
 public:
  Event() { check(cudaEventCreate(&event_), "cudaEventCreate"); }
  ~Event() override { forget(cudaEventDestroy(event_)); }
  Event(const Event&) = delete;
  Event& operator=(const Event&) = delete;

  void record() { check(cudaEventRecord(event_, stream()), "cudaEventRecord"); }
  double seconds_since(const DeviceEvent& earlier) const override {
    const Event& start = static_cast<const Event&>(earlier);
    float milliseconds = 0;
    check(cudaEventSynchronize(start.event_), "cudaEventSynchronize");
    check(cudaEventSynchronize(event_), "cudaEventSynchronize");
    check(cudaEventElapsedTime(&milliseconds, start.event_, event_), "cudaEventElapsedTime");
    return 1e-3 * static_cast<double>(milliseconds);
  }

 private:
  cudaEvent_t event_ = nullptr;
};

}  // namespace

// Thread-local: calls of other threads on other streams, such as allocations, do not invalidate the capture.
void begin_capture(CaptureMemory& memory) {
  check(cudaStreamBeginCapture(stream(), cudaStreamCaptureModeThreadLocal), "cudaStreamBeginCapture");
  set_capture(&memory);
}

std::unique_ptr<RecordedWork> end_capture() {
  set_capture(nullptr);
  cudaGraph_t graph = nullptr;
  const cudaError_t status = cudaStreamEndCapture(stream(), &graph);
  if (status != cudaSuccess && graph) forget(cudaGraphDestroy(graph));
  check(status, "cudaStreamEndCapture");
  return std::make_unique<Graph>(graph);
}

namespace {

// cudaMalloc is a call that may invalidate a capture; a thread in relaxed mode may make it.
cudaError_t relaxed_malloc(void** data, std::size_t bytes) {
  cudaStreamCaptureMode mode = cudaStreamCaptureModeRelaxed;
  check(cudaThreadExchangeStreamCaptureMode(&mode), "cudaThreadExchangeStreamCaptureMode");
  const cudaError_t status = cudaMalloc(data, bytes);
  forget(status);
  check(cudaThreadExchangeStreamCaptureMode(&mode), "cudaThreadExchangeStreamCaptureMode");
  return status;
}

}  // namespace

void* allocate_unordered(std::size_t bytes) {
  static_cast<void>(stream());  // initialises the device
  void* data = nullptr;
  cudaError_t status = relaxed_malloc(&data, bytes);
  if (status == cudaErrorMemoryAllocation && !is_capturing()) {  // releases memory cached from freed tensors
    empty_cache(current_device());
    status = relaxed_malloc(&data, bytes);
  }
  if (status == cudaErrorMemoryAllocation)
    throw DeviceError(
        fmt::format("cuda:{}: out of memory: {} bytes requested outside tensor memory; "
                    "empty_cache() before CudaGraph::capture may help",
                    current_device(), bytes));
  check(status, "cudaMalloc");
  return data;
}

std::unique_ptr<DeviceEvent> record_event() {
  auto event = std::make_unique<Event>();
  event->record();
  return event;
}

}  // namespace lockstep::cuda
