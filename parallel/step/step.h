/// \file
/// One training step over micro-batches: what GradientAccumulation, DataParallel and DistributedDataParallel have in
/// common.
///
///     Tensor loss = run.backward(x, y, [&](const Tensor& x, const Tensor& y) { return criterion(model(x), y); });
///
/// calls the function once for each micro-batch, runs backward from each loss, sums the gradients in canonical order
/// (micro-batches (0,1), (2,3), ...; then pairs of pairs), multiplies once by 1 / micro-batches, and returns the mean
/// of the micro-batches' losses, detached. The function returns the mean loss of its micro-batch, a 0-d tensor. It
/// gets `x` and `y` without their history. DataParallel throws if the loss depends on another tensor that requires
/// grad and is not a parameter of the module. For the same micro-batches all modes give the same bits.
#pragma once

#include <cstdint>
#include <vector>

#include "lockstep/base/callback.h"
#include "lockstep/tensor/tensor.h"

namespace lockstep::parallel {

using Batch = std::vector<Tensor>;                                     ///< tensors whose first dimension counts samples
using MicroBatchLoss = FunctionRef<Tensor(const Batch& micro_batch)>;  ///< the loss of one micro-batch

/// The weights of micro-batches with different numbers of samples.
enum class Weighting : std::uint8_t {
  kEqual,    ///< all micro-batches have the same weight
  kSamples,  ///< weight = number of samples: the result is the mean over all samples of the step
};

/// The `backward` method of a Mode that has `Tensor run(const Batch&, MicroBatchLoss)`.
template <class Mode>
class TrainingStep {
 public:
  /// Splits the samples over the micro-batches as evenly as possible, larger micro-batches first. A micro-batch without
  /// samples is not run.
  template <class LossFn>
  Tensor backward(const Tensor& x, const Tensor& y, LossFn&& loss_fn) {
    return self().run({x, y},
                      [&](const Batch& micro_batch) -> Tensor { return loss_fn(micro_batch[0], micro_batch[1]); });
  }
  /// Several inputs: loss_fn(const `std::vector<Tensor>&` inputs, const Tensor& y).
  template <class LossFn>
  Tensor backward(const std::vector<Tensor>& inputs, const Tensor& y, LossFn&& loss_fn) {
    Batch batch = inputs;
    batch.push_back(y);
    return self().run(batch, [&](const Batch& micro_batch) -> Tensor {
      return loss_fn(std::vector<Tensor>(micro_batch.begin(), micro_batch.end() - 1), micro_batch.back());
    });
  }

 protected:
  ~TrainingStep() = default;

 private:
  Mode& self() { return static_cast<Mode&>(*this); }
};

}  // namespace lockstep::parallel
