/// \file
/// One training step over micro-batches: what GradientAccumulation, DataParallel and DistributedDataParallel have in
/// common.
///
///     Tensor loss = run.backward(x, y, [&](const Tensor& x, const Tensor& y) { return criterion(model(x), y); });
///
/// runs the function once for each micro-batch of the batch, backward included, adds up the gradients in canonical order
/// (micro-batches (0,1), (2,3), ...; then pairs of pairs), multiplies once by 1 / micro-batches, and returns the mean
/// of the micro-batches' losses, detached. `x` and `y` are taken without their history; what requires grad and is no
/// parameter of the module is refused by DataParallel. The function returns the mean loss of its micro-batch, a 0-d
/// tensor. For the same micro-batches all modes give the same bits.
#pragma once

#include <cstdint>
#include <vector>

#include "lockstep/tensor/callback.h"
#include "lockstep/tensor/tensor.h"

namespace lockstep::parallel {

using Batch = std::vector<Tensor>;                                     ///< tensors with one row for each example
using MicroBatchLoss = FunctionRef<Tensor(const Batch& micro_batch)>;  ///< the loss of one micro-batch

/// How much a micro-batch counts that has more rows than others.
enum class Weighting : std::uint8_t {
  kEqual,    ///< every micro-batch the same
  kSamples,  ///< by its rows: the result is the mean over all examples of the step
};

/// The verb, for a Mode with `Tensor run(const Batch&, MicroBatchLoss)`.
template <class Mode>
class TrainingStep {
 public:
  /// Rows are split over the micro-batches as evenly as possible, larger micro-batches first; a micro-batch without
  /// rows is not run.
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
