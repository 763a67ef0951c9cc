/// \file
/// Pipeline parallelism: the modules of a chain are cut into stages on several ranks, which work on different
/// micro-batches at the same time. Each rank has the parameters of its own stages only.
///
///     const DeviceMesh mesh(group, {{"pp", 4}});
///     Pipeline run(model, mesh["pp"], {.chain = {"embed", "blocks.*", "head"}, .micro_batches_per_rank = 8});
///     run.backward(x, y, [&](const Tensor& x, const Tensor& y) { return criterion(run.module()(x), y); });
///
/// The model is an ordinary one. In a chain, each module gets the result of the one before, and nothing else; the first one
/// gets the inputs. backward and evaluate throw InvalidArgument if the model's own forward does anything else. All ranks
/// pass the same batch. The loss function runs on the last stage, where the module's call gives the result of the chain; it
/// must call the module once, with the x that it gets. All ranks get the mean loss.
///
/// The number of micro-batches determines the bits; ranks, stages and schedule do not: parameters, buffers and losses
/// equal those of GradientAccumulation with as many micro-batches. If modules of the chain share a parameter, each has its
/// own gradient sum, and these are added from the last module to the first; then they equal those of a Pipeline of one rank.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/nn/module.h"
#include "lockstep/parallel/comm/device_mesh.h"
#include "lockstep/parallel/schedule/schedule.h"
#include "lockstep/parallel/step/step.h"

namespace lockstep::parallel {

/// Options of Pipeline.
struct PipelineOptions {
  /// Patterns of module paths, in the order of the chain; '*' stands for any text without '.'. Empty: the children of a
  /// Sequential. Every module with parameters or buffers must be in the chain.
  std::vector<std::string> chain = {};
  /// Paths of the chain's modules with which stages begin, but the first stage; empty: stages have equal numbers of
  /// modules, larger ones first.
  std::vector<std::string> split_before = {};
  Schedule schedule = Schedule::k1F1B;  ///< kZeroBubble is not for models that recompute (autograd::checkpoint)
  int micro_batches_per_rank = 1;       ///< in a step: all ranks run all of them
  int chunks_per_rank = 1;              ///< number of stages on each rank (kInterleaved)
  /// A table of your own, in the place of `schedule` and `chunks_per_rank`.
  std::optional<ScheduleTable> table = std::nullopt;
  Weighting weighting = Weighting::kEqual;  ///< of micro-batches with different numbers of samples
};

/// The stages of a pipeline, and what its schedule costs by closed forms of equal stages.
struct PipelinePlan {
  std::int64_t boundary_bytes = 0;  ///< activations and gradients that this rank sent in the last step; before one: 0
  /// Memory of this rank in which messages wait for their receivers (backends shm and local); before the first step: 0.
  std::int64_t outbox_bytes = 0;
  double bubble = 0;  ///< share of a step in which a rank waits, mean over ranks: F, I, W take equally long
  std::vector<int> in_flight = {};  ///< by rank: the most micro-batches, of one chunk each, whose activations it holds
  /// By rank: the most of these whose I is done and W is not. Their gradients are held, too, as W needs them.
  std::vector<int> deferred = {};
  std::vector<std::string> stages = {};  ///< by stage: rank and modules
  std::string to_string() const;         ///< a table
};

/// Trains a model in stages.
class Pipeline : public TrainingStep<Pipeline> {
 public:
  /// Compares the models and options of all ranks of `axis`, takes rank 0's values, then frees the parameters of other
  /// ranks' stages; deferred parameters (nn/deferred.h) get storage on their stage's rank only. The model stays in stages
  /// for good. `module` must outlive this object. Collective along the axis. Throws InvalidArgument for a chain that
  /// leaves out parameters, names a module twice, or has fewer modules than there are stages; if stages of different
  /// ranks share a buffer; and for numbers that the schedule cannot have. Throws CommError if ranks differ.
  Pipeline(nn::Module& module, const DeviceMesh& axis, const PipelineOptions& options = {});
  ~Pipeline();
  Pipeline(const Pipeline&) = delete;
  Pipeline& operator=(const Pipeline&) = delete;

  nn::Module& module() const;                   ///< the module that was passed to the constructor
  std::shared_ptr<ProcessGroup> group() const;  ///< of the ranks; null: this process alone
  /// The norm is that of the gradients of all stages. All ranks must call it.
  double clip_grad_norm_(double max_norm);
  const ScheduleTable& schedule() const;  ///< of all ranks, without messages
  PipelinePlan plan() const;              ///< stages, waiting time, activations
  TrainingPlan training_plan() const;     ///< memory of this rank's stages
  const TrafficStats& traffic();          ///< of this rank
  /// Steps while the guard exists count as part of the next one in traffic(); gradients accumulate as ever.
  [[nodiscard]] NoSync no_sync();
  void request_stop();          ///< reaches all ranks in the next step or evaluation
  bool stop_requested() const;  ///< true if any rank had requested a stop in the last step

  // backward, evaluate, parameters, named_parameters (of this rank's stages), gathered: see step.h.

 private:
  friend class TrainingStep<Pipeline>;
  friend class CheckpointModel;
  friend class Recorder;
  StepWatchers& watchers();
  Tensor run(const Batch& batch, MicroBatchLoss loss_fn);
  Tensor run_evaluation(const Batch& batch, MicroBatchLoss loss_fn);
  std::shared_ptr<ModelState> model_state();
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace lockstep::parallel
