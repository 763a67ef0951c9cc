/// \file
/// DataParallel: one process, one replica of the model on each of several devices.
///
/// Replicas are kept from step to step; parameters that changed are sent again. Inputs are split over the devices, and
/// gradients are gathered on the first one: 2 (n-1) times the parameters' bytes pass through it in every step, which is
/// why DistributedDataParallel scales better. `traffic()` shows the bytes.
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "lockstep/nn/module.h"
#include "lockstep/parallel/comm/traffic.h"
#include "lockstep/parallel/replicated/step.h"

namespace lockstep::parallel {

/// Where results go, and how replicas count.
struct DataParallelOptions {
  std::optional<Device> output_device = std::nullopt;  ///< of operator()'s result; by default the first device
  Weighting weighting = Weighting::kEqual;             ///< of replicas with unequal numbers of rows; needs the verb
};

/// Trains one model on several devices of this process, as the head of this file says.
class DataParallel : public TrainingStep<DataParallel> {
 public:
  /// The module's parameters and buffers must be on devices[0]. Refers to `module`, which has to live as long. Throws
  /// InvalidArgument where they are elsewhere, without devices, and inside another DataParallel's replica.
  DataParallel(nn::Module& module, std::vector<Device> devices, const DataParallelOptions& options = {});
  ~DataParallel();
  DataParallel(const DataParallel&) = delete;
  DataParallel& operator=(const DataParallel&) = delete;

  /// Forward on all devices at once, rows split as evenly as possible; a batch with fewer rows than devices uses as many
  /// as it has. The results are gathered, in order, on the output device. Backward runs through everything, each
  /// replica's part on its own thread, also after the DataParallel is gone (then in turn on the calling thread);
  /// gradients flow through what forward returns. An exception of a replica names it and its device.
  Tensor operator()(const Tensor& x);
  /// Several inputs, split alike: the module's forward_inputs. Throws InvalidArgument where their rows differ in number.
  Tensor operator()(const std::vector<Tensor>& inputs);
  std::vector<nn::Parameter> parameters() const;  ///< the module's

  /// What was moved between devices. Ends are positions in `devices`; their number stands for every device that is not
  /// among them (an output device, where inputs came from).
  TrafficBook& traffic();
  // backward(x, y, loss_fn): see step.h; forward, loss and backward of a replica run on its own thread.

 private:
  friend class TrainingStep<DataParallel>;
  Tensor run(const Batch& batch, MicroBatchLoss loss_fn);
  struct State;
  class OnReplicas;
  std::unique_ptr<State> state_;
};

}  // namespace lockstep::parallel
