/// \file
/// CUDA graphs: a training step's kernels are recorded once and then started by one call, which removes the cost of
/// launching each kernel. For small models these launches dominate the step.
#pragma once

#include <cstdint>
#include <memory>

#include "lockstep/base/callback.h"
#include "lockstep/base/device.h"

namespace lockstep {

struct RecordedStep;

/// How CudaGraph::capture records a step.
struct CaptureOptions {
  bool warm_up = true;  ///< false: the step has already run on this thread and allocated what it needs
};

/// One recorded step. It reads and writes the tensors that it was captured with, at their addresses: copy a batch into
/// them (x.copy_(batch)) before a replay. A tensor outside the step that the step assigned, such as its loss, holds the
/// last replay's value.
///
///     CudaGraph graph;
///     graph.capture([&] { optimizer.zero_grad(); loss = criterion(model(x), y); loss.backward(); optimizer.step(); });
///     for (...) { x.copy_(batch.x); y.copy_(batch.y); graph.replay(); }
///
/// Replays train as calls of the step would, bit for bit: learning rates and an optimizer's step count, which
/// checkpoints save, are updated, and dropout draws new random numbers. A step begins with zero_grad(), uses one
/// device, and is the same sequence of kernels every time: branches on the host are not recorded.
///
/// The tensors, modules and optimizers that the step uses must outlive its replays. One thread uses a CudaGraph at a
/// time, and no other thread may use the device during capture().
class CudaGraph {
 public:
  explicit CudaGraph(Device device = "cuda:0");
  ~CudaGraph();
  CudaGraph(const CudaGraph&) = delete;
  CudaGraph& operator=(const CudaGraph&) = delete;

  /// Records the step and runs it once, by the first replay; with warm_up it also runs once before. Replaces an earlier
  /// recording. A warm-up resets the device's peak_bytes (allocator_stats).
  ///
  /// Throws InvalidArgument for a device that is not a cuda device, for a step that waits for the device (item,
  /// to("cpu")) or copies from the CPU, and inside another capture; DeviceError if the device cannot record the step.
  /// Exceptions of the step pass through. After an exception there is no graph, and the host's part of the step may
  /// have run.
  void capture(FunctionRef<void()> step, const CaptureOptions& options = {});
  /// Starts the step again without waiting for it. Throws InvalidArgument before capture().
  void replay();

  /// Device memory that the graph holds, in bytes.
  std::int64_t memory_bytes() const;

 private:
  Device device_;
  std::unique_ptr<RecordedStep> recorded_;
};

}  // namespace lockstep
