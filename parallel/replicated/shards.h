// Shards: one process runs the S shards of every step in turn.
//
// What Shards computes is what DataParallel on S devices and DistributedDataParallel with S shards in all compute, bit
// for bit: the reference the others are compared with, and gradient accumulation that does not change the result.
#pragma once

#include <memory>
#include <vector>

#include "lockstep/nn/module.h"
#include "lockstep/parallel/replicated/step.h"

namespace lockstep::parallel {

// Into how many shards, and how they count.
struct ShardsOptions {
  int shards = 1;                           // in a step
  Weighting weighting = Weighting::kEqual;  // of shards with unequal numbers of rows
};

// Trains one model on the shards of each step in turn, as the head of this file says.
class Shards : public ShardedStep<Shards> {
 public:
  // Refers to `module`, which has to live as long. Throws InvalidArgument for less than one shard.
  explicit Shards(nn::Module& module, const ShardsOptions& options = {});
  ~Shards();
  Shards(const Shards&) = delete;
  Shards& operator=(const Shards&) = delete;

  Tensor operator()(const Tensor& x) const;       // the module's forward, on all rows at once
  std::vector<nn::Parameter> parameters() const;  // the module's

  // backward(x, y, loss_fn): see step.h. Gradients that stand already are added to.

 private:
  friend class ShardedStep<Shards>;
  Tensor run(const Batch& batch, ShardLoss loss_fn);
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace lockstep::parallel
