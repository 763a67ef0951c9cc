/// \file
/// One training step over micro-batches: what GradientAccumulation, DataParallel, DistributedDataParallel and
/// ShardedDataParallel have in common.
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
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/base/callback.h"
#include "lockstep/nn/module.h"
#include "lockstep/nn/utilities.h"
#include "lockstep/parallel/comm/process_group.h"
#include "lockstep/parallel/step/plan.h"
#include "lockstep/parallel/step/stats.h"
#include "lockstep/tensor/tensor.h"
#include "lockstep/tensor/tensor_part.h"

namespace lockstep::parallel {

using Batch = std::vector<Tensor>;                                     ///< tensors whose first dimension counts samples
using MicroBatchLoss = FunctionRef<Tensor(const Batch& micro_batch)>;  ///< the loss of one micro-batch

/// The weights of micro-batches with different numbers of samples.
enum class Weighting : std::uint8_t {
  kEqual,    ///< all micro-batches have the same weight
  kSamples,  ///< weight = number of samples: the result is the mean over all samples of the step
};

/// This rank's piece of a parameter.
struct ShardedParameter {
  std::string name;         ///< in the model: "blocks.0.up.weight"
  nn::Parameter parameter;  ///< this rank's elements, in one dimension; empty if another rank has them all
  Shape shape;              ///< of the whole parameter
  std::int64_t first = 0;   ///< part.at(0): the piece's first element in the whole parameter, row-major
  TensorPart part = {};     ///< which elements of the whole parameter these are
};

/// A guard of `no_sync`: ends it.
class NoSync {
 public:
  explicit NoSync(int* depth = nullptr) : depth_(depth) {  ///< not for users
    if (depth_) ++*depth_;
  }
  NoSync(NoSync&& other) noexcept : depth_(std::exchange(other.depth_, nullptr)) {}
  NoSync& operator=(NoSync&&) = delete;
  ~NoSync() {
    if (depth_) --*depth_;
  }

 private:
  int* depth_;  // number of guards of the mode; null: the mode has none
};

class StepWatchers;
class Recorder;
class ModelState;
/// For the modes that keep the whole model; not for users.
std::shared_ptr<ModelState> replicated_state(nn::Module& module, const std::shared_ptr<ProcessGroup>& group);
std::vector<ShardedParameter> whole_parameters(const nn::Module& module);  ///< not for users
double clip_gradients(nn::Module& module, double max_norm);                ///< not for users
void with_whole_parameters(nn::Module& module, FunctionRef<void()> body);  ///< not for users

/// What all modes offer, so that a training loop can be a template over the mode. A mode has its own form of what it
/// does differently; the forms here are those of one process that keeps the whole model.
template <class Mode>
class TrainingStep {
 public:
  /// Splits the samples over the micro-batches as evenly as possible, larger micro-batches first. A micro-batch without
  /// samples is not run.
  template <class LossFn>
  Tensor backward(const Tensor& x, const Tensor& y, LossFn&& loss_fn) {
    return self().run({x, y}, of_two(loss_fn));
  }
  /// Several inputs: loss_fn(const `std::vector<Tensor>&` inputs, const Tensor& y).
  template <class LossFn>
  Tensor backward(const std::vector<Tensor>& inputs, const Tensor& y, LossFn&& loss_fn) {
    return self().run(joined(inputs, y), of_several(loss_fn));
  }

  /// The mean loss of the step's samples, on all ranks, without gradients: loss_fn as in `backward`, in the same
  /// micro-batches. Layers have the mode that the caller sets (`module().eval()`).
  template <class LossFn>
  Tensor evaluate(const Tensor& x, const Tensor& y, LossFn&& loss_fn) {
    return self().run_evaluation({x, y}, of_two(loss_fn));
  }
  /// Several inputs.
  template <class LossFn>
  Tensor evaluate(const std::vector<Tensor>& inputs, const Tensor& y, LossFn&& loss_fn) {
    return self().run_evaluation(joined(inputs, y), of_several(loss_fn));
  }

  /// For an optimizer: the module's parameters.
  std::vector<nn::Parameter> parameters() const { return self().module().parameters(); }
  /// The same with their names and whole shapes: weights have `shape.dim() > 1`.
  std::vector<ShardedParameter> named_parameters() const { return whole_parameters(self().module()); }
  std::shared_ptr<ProcessGroup> group() const { return nullptr; }  ///< of the ranks; null: this process alone
  /// Scales the gradients so that their norm is at most `max_norm`, as nn::clip_grad_norm_. Returns the norm before.
  /// Of a model that tensor parallelism has cut, the norm is that of all slices, and all ranks must call it.
  double clip_grad_norm_(double max_norm) { return clip_gradients(self().module(), max_norm); }
  /// Calls `body`, which may read all parameters. A model that tensor parallelism has cut has whole parameters meanwhile,
  /// under their plain names, and computes with these on every rank. `body` must not change them, and all ranks that share
  /// the model must call this.
  void gathered(FunctionRef<void()> body) { with_whole_parameters(self().module(), body); }
  /// While the guard exists, gradients accumulate without communication: here as ever.
  [[nodiscard]] NoSync no_sync() { return NoSync(); }
  /// Requests a stop, for example after Ctrl-C: stop_requested() becomes true.
  void request_stop() { wants_stop_ = true; }
  bool stop_requested() const { return wants_stop_; }  ///< whether to end the training after this step
  TrainingStats stats() const { return {}; }           ///< of the reductions: none here
  const TrafficStats& traffic() { return traffic_; }   ///< the traffic counters: none here

 protected:
  ~TrainingStep() = default;
  std::shared_ptr<Recorder> recorder_;  // of LOCKSTEP_RECORD; null: not set

 private:
  friend class CheckpointModel;
  static Batch joined(Batch inputs, const Tensor& y) {
    inputs.push_back(y);
    return inputs;
  }
  template <class LossFn>
  static auto of_two(LossFn& loss_fn) {
    return [&](const Batch& micro_batch) -> Tensor { return loss_fn(micro_batch[0], micro_batch[1]); };
  }
  template <class LossFn>
  static auto of_several(LossFn& loss_fn) {
    return [&](const Batch& micro_batch) -> Tensor {
      return loss_fn(std::vector<Tensor>(micro_batch.begin(), micro_batch.end() - 1), micro_batch.back());
    };
  }
  std::shared_ptr<ModelState> model_state() { return replicated_state(self().module(), self().group()); }
  Mode& self() { return static_cast<Mode&>(*this); }
  const Mode& self() const { return static_cast<const Mode&>(*this); }

  bool wants_stop_ = false;
  TrafficStats traffic_;
};

}  // namespace lockstep::parallel
