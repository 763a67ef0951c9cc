// Training steps that a GPU repeats without the host: their kernels are recorded once and then started by one call, so a
// small model's step no longer costs what starting dozens of kernels costs.
#pragma once

#include <cstdint>
#include <memory>

#include "lockstep/tensor/callback.h"
#include "lockstep/tensor/device.h"

namespace lockstep {

struct RecordedStep;

// How CudaGraph::capture records a step.
struct CaptureOptions {
  bool warm_up = true;  // false: the step has been taken before, on this thread, so that everything it needs is there
};

// One step, recorded. It reads and writes the tensors that it was captured with, where they lie: a batch is put in its place
// (x.copy_(batch)) before a replay, and what the step assigned to a tensor outside, its loss, holds the last replay's.
//
//   CudaGraph graph;
//   graph.capture([&] { optimizer.zero_grad(); loss = criterion(model(x), y); loss.backward(); optimizer.step(); });
//   for (...) { x.copy_(batch.x); y.copy_(batch.y); graph.replay(); }
//
// Replays train as calls of the step would, bit for bit: learning rates and an optimizer's count of steps, which checkpoints
// save, follow, and dropout draws new numbers. A step begins with zero_grad(), uses one device, and is the same sequence of
// kernels every time: branches of the host are not recorded.
//
// The tensors, modules and optimizers it uses have to live as long as it is replayed. One thread uses it at a time, and no
// other thread may use the device during capture().
class CudaGraph {
 public:
  explicit CudaGraph(Device device = "cuda:0");
  ~CudaGraph();
  CudaGraph(const CudaGraph&) = delete;
  CudaGraph& operator=(const CudaGraph&) = delete;

  // Takes the step once by the first replay of what was recorded, and with warm_up once before. Records anew where something
  // was recorded before. A warm-up starts the device's peak_bytes (allocator_stats) anew.
  //
  // Throws InvalidArgument for a device that is not a cuda device, for a step that waits for the device (item, to("cpu")) or
  // copies from the CPU, and inside another capture; DeviceError where the device cannot record it. What the step throws
  // passes through. No graph is there then, and the host's part of the step may have happened.
  void capture(FunctionRef<void()> step, const CaptureOptions& options = {});
  // Starts the step once more, and does not wait for it. Throws InvalidArgument before capture().
  void replay();

  // Memory that it holds on the device, bytes.
  std::int64_t memory_bytes() const;

 private:
  Device device_;
  std::unique_ptr<RecordedStep> recorded_;
};

}  // namespace lockstep
