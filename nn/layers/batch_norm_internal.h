// BatchNorm in a training step: updates of the running statistics by all micro-batches, and statistics over more than a
// batch. Not installed.
#pragma once

#include <memory>
#include <utility>

#include "lockstep/nn/layers/norm_layers.h"

namespace lockstep::nn {

// Replaces a layer's statistics of the batch, in training mode. Used by several threads, if they run the layer.
class SharedStatistics {
 public:
  virtual ~SharedStatistics() = default;
  // y of x (n, features, ...). running_mean and running_var move towards the statistics by `momentum`; undefined: not.
  virtual Tensor normalise(const Tensor& x, const Tensor& weight, const Tensor& bias, const Tensor& running_mean,
                           const Tensor& running_var, double momentum, double eps) const = 0;
};

// The update of the running statistics by the forwards of one micro-batch: 1-D, 2 features + 2 elements. The forwards
// write to it as to running statistics that start as 0: mean, variance, number of forwards, and of those with elements.
class BatchNormAccess {
 public:
  // Whether all micro-batches update the layer's running statistics.
  static bool adds_updates(const BatchNorm& layer) {
    return layer.options_.all_micro_batches && layer.running_mean.master().defined() && !layer.shared_;
  }
  // While this is defined, the layer's forward writes there, and not to its buffers.
  static const Buffer& update(const BatchNorm& layer) { return layer.update_; }
  static std::int64_t elements(const BatchNorm& layer) { return 2 * layer.features_ + 2; }
  // Updates the layer's buffers. `update` is f64 on the CPU.
  static void apply(const BatchNorm& layer, const Tensor& update);
  static const std::shared_ptr<const SharedStatistics>& shared(const BatchNorm& layer) { return layer.shared_; }
  static void share(BatchNorm& layer, std::shared_ptr<const SharedStatistics> shared) {
    layer.shared_ = std::move(shared);
  }
};

}  // namespace lockstep::nn
