// Streams, events, captures and graphs.
#include <algorithm>
#include <chrono>

#include "tests/cuda/simulator/runtime_state.h"

namespace simulator {
namespace {

constexpr double kPatience = 1e-4;  // seconds

thread_local cudaStreamCaptureMode thread_mode = cudaStreamCaptureModeGlobal;

double now() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

void give(CUstream_st& stream, Work work) {
  stream.queue.push_back(std::move(work));
  ++stream.given;
}

bool exists(cudaStream_t stream) {
  for (int device = 0; device < settings().devices; ++device) {
    for (const auto& known : device_state(device).streams) {
      if (known.get() == stream) return true;
    }
  }
  return false;
}

template <class F>
void for_each_capture(F function) {
  for (int device = 0; device < settings().devices; ++device) {
    for (const auto& stream : device_state(device).streams) {
      if (stream->capture) function(*stream->capture);
    }
  }
}

bool reach(Moment& moment) {
  if (!moment.reached) run_until(*moment.stream, moment.given);
  return moment.reached;
}

}  // namespace

bool is_captured(cudaStream_t stream) { return stream->capture != nullptr; }
int device_of(cudaStream_t stream) { return stream->device; }

cudaError_t enqueue(cudaStream_t stream, Work work) {
  if (!exists(stream)) return cudaErrorInvalidResourceHandle;  // null as well: the library uses its own streams
  if (stream->device != current_device()) return cudaErrorInvalidResourceHandle;
  if (device_state(stream->device).broken != cudaSuccess) return device_state(stream->device).broken;
  if (!stream->capture) {
    give(*stream, std::move(work));
    return cudaSuccess;
  }
  if (stream->capture->spoiled != cudaSuccess) return cudaErrorStreamCaptureInvalidated;
  stream->capture->graph->works.push_back(std::move(work));
  return cudaSuccess;
}

bool run_until(CUstream_st& stream, std::uint64_t given) {
  if (stream.done >= given) return true;
  if (now() < stream.asked_again_at) return false;
  const Open open(stream.device);
  while (stream.done < given) {
    if (device_state(stream.device).broken == cudaSuccess && !stream.queue.front()()) {
      stream.asked_again_at = now() + kPatience;
      return false;
    }
    stream.queue.pop_front();
    ++stream.done;
  }
  return true;
}

void wait_until(CUstream_st& stream, std::uint64_t given) {
  while (!run_until(stream, given)) {
    mutex().unlock();  // held once by the call
    std::this_thread::yield();
    mutex().lock();
  }
}

void wait_for_device(int device) {
  for (std::size_t i = 0; i < device_state(device).streams.size(); ++i) {
    CUstream_st& stream = *device_state(device).streams[i];
    wait_until(stream, stream.given);
  }
}

cudaError_t disturb_captures() {
  bool disturbed = false;
  for_each_capture([&](Capture& capture) {
    if (capture.mode == cudaStreamCaptureModeRelaxed || thread_mode == cudaStreamCaptureModeRelaxed) return;
    const bool both_global = capture.mode == cudaStreamCaptureModeGlobal && thread_mode == cudaStreamCaptureModeGlobal;
    if (capture.thread != std::this_thread::get_id() && !both_global) return;
    capture.spoiled = cudaErrorStreamCaptureUnsupported;
    disturbed = true;
  });
  return disturbed ? cudaErrorStreamCaptureUnsupported : cudaSuccess;
}

}  // namespace simulator

using simulator::Work;

// --- streams --------------------------------------------------------------------------------------------------------

cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned flags) {
  ENTER();
  if (flags != cudaStreamNonBlocking)
    return answer(cudaErrorNotSupported);  // blocking streams synchronise with stream 0, which is not simulated
  auto& streams = simulator::device_state(simulator::current_device()).streams;
  streams.push_back(std::make_unique<CUstream_st>(simulator::current_device()));
  *stream = streams.back().get();
  return answer(cudaSuccess);
}

cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  ENTER();
  if (!simulator::exists(stream)) return answer(cudaErrorInvalidResourceHandle);
  simulator::wait_until(*stream, stream->given);
  std::erase_if(simulator::device_state(stream->device).streams,
                [&](const auto& known) { return known.get() == stream; });
  return answer(cudaSuccess);
}

cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
  ENTER();
  if (!simulator::exists(stream)) return answer(cudaErrorInvalidResourceHandle);
  if (stream->capture) {
    stream->capture->spoiled = cudaErrorStreamCaptureUnsupported;
    return answer(cudaErrorStreamCaptureUnsupported);
  }
  simulator::wait_until(*stream, stream->given);
  return answer(simulator::device_state(stream->device).broken);
}

cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned) {
  ENTER();
  if (!simulator::exists(stream)) return answer(cudaErrorInvalidResourceHandle);
  if (!event->moment) return answer(cudaSuccess);
  if (stream->capture && event->moment->stream != stream) {
    stream->capture->spoiled = cudaErrorStreamCaptureIsolation;
    return answer(cudaErrorStreamCaptureIsolation);
  }
  if (stream->capture) return answer(cudaSuccess);
  simulator::give(*stream, [moment = event->moment] { return simulator::reach(*moment); });
  return answer(cudaSuccess);
}

// --- events ---------------------------------------------------------------------------------------------------------

cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned flags) {
  ENTER();
  *event = new CUevent_st{simulator::current_device(), (flags & cudaEventDisableTiming) == 0};
  return answer(cudaSuccess);
}

cudaError_t cudaEventCreate(cudaEvent_t* event) { return cudaEventCreateWithFlags(event, cudaEventDefault); }

cudaError_t cudaEventDestroy(cudaEvent_t event) {
  ENTER();
  delete event;
  return answer(cudaSuccess);
}

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  ENTER();
  if (!simulator::exists(stream) || event->device != stream->device) return answer(cudaErrorInvalidResourceHandle);
  auto moment = std::make_shared<Moment>(stream, stream->given + 1);
  event->moment = moment;
  const auto mark = [moment] {
    moment->reached = true;
    moment->seconds = simulator::now();
    return true;
  };
  if (stream->capture)
    stream->capture->graph->works.emplace_back(mark);
  else
    simulator::give(*stream, mark);
  return answer(cudaSuccess);
}

// Each query lets the device run one step, so that "not ready" occurs wherever it can.
cudaError_t cudaEventQuery(cudaEvent_t event) {
  ENTER();
  const cudaError_t disturbs = simulator::disturb_captures();
  if (disturbs != cudaSuccess || !event->moment) return answer(disturbs);
  CUstream_st& stream = *event->moment->stream;
  if (!event->moment->reached) simulator::run_until(stream, std::min(stream.done + 1, stream.given));
  return answer(event->moment->reached ? cudaSuccess : cudaErrorNotReady);
}

cudaError_t cudaEventSynchronize(cudaEvent_t event) {
  ENTER();
  const cudaError_t disturbs = simulator::disturb_captures();
  if (disturbs != cudaSuccess || !event->moment) return answer(disturbs);
  while (!simulator::reach(*event->moment)) {
    simulator::mutex().unlock();
    std::this_thread::yield();
    simulator::mutex().lock();
  }
  return answer(cudaSuccess);
}

cudaError_t cudaEventElapsedTime(float* milliseconds, cudaEvent_t start, cudaEvent_t end) {
  ENTER();
  if (!start->moment || !end->moment || !start->has_time || !end->has_time)
    return answer(cudaErrorInvalidResourceHandle);
  if (!start->moment->reached || !end->moment->reached) return answer(cudaErrorNotReady);
  *milliseconds = static_cast<float>(1e3 * (end->moment->seconds - start->moment->seconds));
  return answer(cudaSuccess);
}

// --- captures and graphs --------------------------------------------------------------------------------------------

cudaError_t cudaThreadExchangeStreamCaptureMode(cudaStreamCaptureMode* mode) {
  ENTER();
  std::swap(*mode, simulator::thread_mode);
  return answer(cudaSuccess);
}

cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode mode) {
  ENTER();
  if (!simulator::exists(stream) || stream->capture) return answer(cudaErrorInvalidValue);
  stream->capture = std::make_unique<Capture>(
      Capture{std::this_thread::get_id(), mode, std::make_unique<CUgraph_st>(stream->device, std::vector<Work>{})});
  return answer(cudaSuccess);
}

// Ends the capture, whatever the result.
cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t* graph) {
  *graph = nullptr;
  const simulator::Call answer(__func__);
  if (!simulator::exists(stream) || !stream->capture) return answer(cudaErrorInvalidValue);
  if (stream->capture->thread != std::this_thread::get_id()) return answer(cudaErrorStreamCaptureWrongThread);
  const std::unique_ptr<Capture> ended = std::move(stream->capture);
  if (answer.refused() != cudaSuccess) return answer(answer.refused());
  if (ended->spoiled != cudaSuccess) return answer(cudaErrorStreamCaptureInvalidated);
  *graph = ended->graph.release();
  return answer(cudaSuccess);
}

cudaError_t cudaGraphInstantiate(cudaGraphExec_t* ready, cudaGraph_t graph, unsigned long long) {
  ENTER();
  *ready = new CUgraphExec_st{*graph};
  return answer(cudaSuccess);
}

cudaError_t cudaGraphLaunch(cudaGraphExec_t ready, cudaStream_t stream) {
  ENTER();
  if (!simulator::exists(stream) || stream->device != ready->graph.device) return answer(cudaErrorInvalidValue);
  for (const Work& work : ready->graph.works) {
    const cudaError_t status = simulator::enqueue(stream, work);
    if (status != cudaSuccess) return answer(status);
  }
  return answer(cudaSuccess);
}

cudaError_t cudaGraphExecDestroy(cudaGraphExec_t ready) {
  ENTER();
  delete ready;
  return answer(cudaSuccess);
}

cudaError_t cudaGraphDestroy(cudaGraph_t graph) {
  ENTER();
  delete graph;
  return answer(cudaSuccess);
}
