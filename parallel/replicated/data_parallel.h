/// \file
/// DataParallel: one process, one replica of the model on each of several devices.
///
/// Replicas are kept from step to step; only parameters that changed are sent again. Inputs are split over the devices,
/// and gradients are summed on the first one: in every step 2 (n-1) times the parameters' bytes pass through the first
/// device, which is why DistributedDataParallel scales better. `traffic()` shows the bytes.
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "lockstep/nn/module.h"
#include "lockstep/parallel/comm/traffic.h"
#include "lockstep/parallel/step/step.h"

namespace lockstep::parallel {

/// The device of the results, and the weights of the replicas.
struct DataParallelOptions {
  std::optional<Device> output_device = std::nullopt;  ///< of operator()'s result; by default the first device
  Weighting weighting = Weighting::kEqual;             ///< of replicas' samples; for backward(x, y, loss_fn) only
};

/// Trains one model on several devices of this process.
class DataParallel : public TrainingStep<DataParallel> {
 public:
  /// On all GPUs, for a module on cuda:0. A module on the CPU runs on its own device alone, as in PyTorch: virtual CPU
  /// devices are as many as a program names.
  explicit DataParallel(nn::Module& module);
  /// `module` must outlive this object. Throws InvalidArgument if a parameter or buffer is not on devices[0], if there
  /// are no devices, and inside another DataParallel's replica.
  DataParallel(nn::Module& module, std::vector<Device> devices, const DataParallelOptions& options = {});
  ~DataParallel();
  DataParallel(const DataParallel&) = delete;
  DataParallel& operator=(const DataParallel&) = delete;

  /// Forward on all devices at once. Samples are split as evenly as possible; a batch of fewer samples than devices
  /// uses one device for each sample. The results are gathered, in order, on the output device. Backward from the
  /// results runs each replica's part on its own thread; the first one's, and after the DataParallel is destroyed all
  /// parts one after another, on the calling thread. Gradients flow only through the tensor that forward returns. An
  /// exception names the replica and its device.
  Tensor operator()(const Tensor& x);
  /// Calls the module's forward_inputs. Throws InvalidArgument if the inputs have different numbers of samples.
  Tensor operator()(const std::vector<Tensor>& inputs);
  nn::Module& module() const;  ///< the module that was passed to the constructor

  /// The traffic between devices. `from` and `to` are positions in `devices`; devices.size() stands for every other
  /// device (an output device, or the device of the inputs).
  const TrafficStats& traffic();
  /// Steps while the guard exists count as part of the next one in traffic(); gradients accumulate as ever.
  [[nodiscard]] NoSync no_sync();
  TrainingPlan plan() const;  ///< memory on the first device
  // backward(x, y, loss_fn): see step.h. Forward, loss and backward of a replica run on its own thread,
  // those of the first one on the calling thread.

 private:
  friend class TrainingStep<DataParallel>;
  friend class Recorder;
  StepWatchers& watchers();
  Tensor run(const Batch& batch, MicroBatchLoss loss_fn);
  Tensor run_evaluation(const Batch& batch, MicroBatchLoss loss_fn);
  struct State;
  class OnReplicas;
  std::unique_ptr<State> state_;
};

}  // namespace lockstep::parallel
