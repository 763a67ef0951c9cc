/// \file
/// Parallel: one object that trains a model on a mesh of any shape.
///
///     const DeviceMesh mesh(group, {{"dp", 2}, {"cp", 4}});
///     Parallel run(model, mesh, {.partition = {.micro_batches = 4, .sequence_blocks = 4}});
///     const auto mine = run.split_sequence({tokens, positions, targets});  // of this rank's micro-batches
///     run.backward({mine[0], mine[1]}, mine[2], loss_fn);
///
/// The partition says how a step is divided: into micro-batches of the batch, sequence blocks, and slices of the model's
/// matrices. The mesh says which rank computes what. All meshes of one partition give the same bits.
///
/// Axes are dp (the ranks have all parameters), fsdp (each has a part: ShardedDataParallel), cp (each has a sequence
/// block: context_parallel), tp (each has slices of the matrices: parallelize) and pp (each has stages of the model:
/// Pipeline). An axis that the mesh lacks has one rank.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/nn/module.h"
#include "lockstep/parallel/comm/device_mesh.h"
#include "lockstep/parallel/model_parallel/context_parallel.h"
#include "lockstep/parallel/model_parallel/styles.h"
#include "lockstep/parallel/schedule/schedule.h"
#include "lockstep/parallel/step/join_options.h"
#include "lockstep/parallel/step/step.h"

namespace lockstep::parallel {

class CommHook;

/// How a step is divided. It determines the bits.
struct Partition {
  int micro_batches = 1;           ///< of the whole step, over all ranks
  int tensor_slices = 1;           ///< of the matrices that ParallelOptions::plan names; 0: as many as ranks along tp
  int sequence_blocks = 1;         ///< as many as ranks along cp
  bool sequence_parallel = false;  ///< with several tensor slices: the modules between them work on parts of sequences
  ContextAttention attention = ContextAttention::kRingZigzag;  ///< over several sequence blocks
};

/// Options of Parallel.
struct ParallelOptions {
  Partition partition = {};  ///< of a step
  ParallelPlan plan = {};    ///< which modules are cut into tensor slices, and how
  /// Of pp: PipelineOptions with the same names, for the micro-batches of a rank. On one rank along pp they have no
  /// effect, but .chain is checked.
  std::vector<std::string> chain = {};
  std::vector<std::string> split_before = {};         ///< see .chain
  Schedule schedule = Schedule::k1F1B;                ///< see .chain
  int chunks_per_rank = 1;                            ///< see .chain
  std::optional<ScheduleTable> table = std::nullopt;  ///< see .chain
  bool gather_keys = false;                           ///< of cp: ContextParallelOptions::gather_keys
  int stage = 3;                                      ///< of fsdp: ShardedDataParallelOptions::stage
  std::vector<std::string> units = {};                ///< of fsdp: ShardedDataParallelOptions::units
};

/// Trains a model on a mesh.
class Parallel : public TrainingStep<Parallel> {
 public:
  /// Constructs GradientAccumulation (one rank), DistributedDataParallel, or ShardedDataParallel (axis fsdp). Until this
  /// object is destroyed, the model is context-parallel if the partition has several sequence blocks. With several tensor
  /// slices it is cut for good, and with several ranks along pp each of them keeps its stages alone. `module` must outlive
  /// this object. Collective. Throws InvalidArgument for a mesh that does not fit the partition, dp and fsdp both above 1,
  /// patterns that name no module, and a stage without parameters to train on several ranks; otherwise as these modes and
  /// as Pipeline.
  Parallel(nn::Module& module, const DeviceMesh& mesh, const ParallelOptions& options = {});
  ~Parallel();
  Parallel(const Parallel&) = delete;
  Parallel& operator=(const Parallel&) = delete;

  /// Calls the module's forward through the training mode. Not with several ranks along pp.
  Tensor operator()(const Tensor& x);
  Tensor operator()(const std::vector<Tensor>& inputs);  ///< the module's forward_inputs
  nn::Module& module() const;                            ///< the module that was passed to the constructor
  std::shared_ptr<ProcessGroup> group() const;  ///< of the ranks that share gradients; null: this process alone
  /// For an optimizer; with fsdp this rank's pieces, with pp those of its stages.
  std::vector<nn::Parameter> parameters() const;
  std::vector<ShardedParameter> named_parameters() const;  ///< the same with names and whole shapes

  int first_micro_batch() const;  ///< the number of this rank's first micro-batch in the step
  int micro_batches() const;      ///< the number of this rank's micro-batches
  /// This rank's sequence blocks of the samples of its micro-batches: parallel::split_sequence along cp. With one sequence block
  /// the tensors themselves.
  std::vector<Tensor> split_sequence(const std::vector<Tensor>& batch) const;

  // backward(x, y, loss_fn), evaluate(x, y, loss_fn): see step.h. `x` and `y` are what split_sequence returns.

  double clip_grad_norm_(double max_norm);  ///< as in the training mode: all ranks must call it
  /// Calls `body`, which may read all parameters. Meanwhile the model is not context-parallel: a rank may run it alone,
  /// on whole sequences.
  void gathered(FunctionRef<void()> body);
  [[nodiscard]] NoSync no_sync();  ///< as in the training mode
  void request_stop();             ///< reaches all ranks of the mesh in the next step
  bool stop_requested() const;     ///< true if any rank had requested a stop in the last step
  TrainingStats stats() const;     ///< of the reductions
  /// Of all axes, as DistributedDataParallel::traffic; those of one axis are mesh["tp"].group()->traffic().
  const TrafficStats& traffic();
  std::string plan() const;            ///< what the axes do, and training_plan(), as text
  TrainingPlan training_plan() const;  ///< of the training mode, without the traffic of attention
  /// Throw InvalidArgument: use DistributedDataParallel or ShardedDataParallel.
  [[noreturn]] void join(FunctionRef<void()> body, const JoinOptions& options = {});
  [[noreturn]] void register_comm_hook(const std::shared_ptr<CommHook>& hook);

 private:
  friend class TrainingStep<Parallel>;
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
