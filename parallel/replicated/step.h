// One training step over shards: what Shards, DataParallel and DistributedDataParallel have in common.
//
//   Tensor loss = run.backward(x, y, [&](const Tensor& x, const Tensor& y) { return criterion(model(x), y); });
//
// runs the function once for each shard of the batch, backward included, adds up the gradients in canonical order
// (shards (0,1), (2,3), ...; then pairs of pairs), multiplies once by 1 / shards, and returns the mean of the shards'
// losses, detached. `x` and `y` are taken without their history; what requires grad and is no parameter of the module is
// refused by DataParallel. The function returns the mean loss of its shard, a 0-d tensor. For the same shards all modes
// give the same bits.
#pragma once

#include <cstdint>
#include <vector>

#include "lockstep/tensor/callback.h"
#include "lockstep/tensor/tensor.h"

namespace lockstep::parallel {

using Batch = std::vector<Tensor>;                          // tensors with one row for each example
using ShardLoss = FunctionRef<Tensor(const Batch& shard)>;  // the loss of one shard

// How much a shard counts that has more rows than others.
enum class Weighting : std::uint8_t {
  kEqual,    // every shard the same
  kSamples,  // by its rows: the result is the mean over all examples of the step
};

// The verb, for a Mode with `Tensor run(const Batch&, ShardLoss)`.
template <class Mode>
class ShardedStep {
 public:
  // Rows are split over the shards as evenly as possible, larger shards first; a shard without rows is not run.
  template <class LossFn>
  Tensor backward(const Tensor& x, const Tensor& y, LossFn&& loss_fn) {
    return self().run({x, y}, [&](const Batch& shard) -> Tensor { return loss_fn(shard[0], shard[1]); });
  }
  // Several inputs: loss_fn(const std::vector<Tensor>& inputs, const Tensor& y).
  template <class LossFn>
  Tensor backward(const std::vector<Tensor>& inputs, const Tensor& y, LossFn&& loss_fn) {
    Batch batch = inputs;
    batch.push_back(y);
    return self().run(batch, [&](const Batch& shard) -> Tensor {
      return loss_fn(std::vector<Tensor>(shard.begin(), shard.end() - 1), shard.back());
    });
  }

 protected:
  ~ShardedStep() = default;

 private:
  Mode& self() { return static_cast<Mode&>(*this); }
};

}  // namespace lockstep::parallel
