// The state of a ShardedDataParallel.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/parallel/checkpoint/model_state_internal.h"
#include "lockstep/parallel/sharded/sharded.h"
#include "lockstep/parallel/sharded/sharded_norm_internal.h"
#include "lockstep/parallel/sharded/unit_gathers_internal.h"
#include "lockstep/parallel/sharded/unit_gradients_internal.h"
#include "lockstep/parallel/step/accumulated_gradients_internal.h"
#include "lockstep/parallel/step/joining_internal.h"
#include "lockstep/parallel/step/micro_batch_loop_internal.h"
#include "lockstep/parallel/step/step_failure_internal.h"
#include "lockstep/parallel/step/step_summary_internal.h"

namespace lockstep::parallel {

class ShardedAccessSupplier;

struct ShardedDataParallel::State {
  State(nn::Module& module, std::shared_ptr<ProcessGroup> group, const ShardedDataParallelOptions& options);
  ~State();

  // --- construction (sharded_state.cpp) ---
  void check_ranks();
  void make_units();
  void disconnect();
  void make_pieces();
  ShardedParameter piece_of(const std::string& name, const Shape& shape, const Tensor& shard,
                            std::int64_t offset) const;
  void install_hooks();
  bool is_resident() const { return options.stage < 3 || !options.reshard_after_forward; }
  bool is_rotating() const { return options.stage > 1 && options.micro_batches_per_rank == 1; }
  bool is_offloaded() const;

  // --- a step (sharded_step.cpp) ---
  void check_usable();
  void check_gathered();
  void gather_all();
  std::vector<Tensor> copy_values() const;
  const UnitParameters* undo_changes(const std::vector<Tensor>& kept);
  void end_failed_step(const std::exception& error);
  Tensor run_step(const MicroBatchPlan& plan, const Batch& batch, MicroBatchLoss loss_fn);
  Tensor run_local(const MicroBatchPlan& plan, const Batch& batch, MicroBatchLoss loss_fn);
  void run_micro_batches(const MicroBatchPlan& plan, const Batch& batch, MicroBatchLoss loss_fn,
                         std::vector<Tensor>& losses, FunctionRef<void()> before_last);
  void upload(const FlatParameters& flat);
  void upload_trained();
  void begin_gathers();
  std::vector<nn::Parameter> parameters_of_pieces() const;
  void drop_gradients();
  double scale_of(const MicroBatchPlan& plan) const { return plan.weighted() ? 1 : 1.0 / micro_batches_of_step(); }
  void begin_step(const MicroBatchPlan& plan, const AccumulatedGradients& local);
  void reset_step();
  void complete(std::size_t parameter, autograd::Run& run);
  void complete(std::size_t parameter);
  void enter_backward(std::size_t unit);
  Tensor finish_step(const MicroBatchPlan& plan, const std::vector<Tensor>& losses, AccumulatedGradients& local);
  Tensor wait_for_sums(const MicroBatchPlan& plan, const StepSummary& own, double scale);
  void finish_local(const MicroBatchPlan& plan, AccumulatedGradients& local);
  void take_gradients(const StepScale& scale, double launched);
  bool is_used(std::size_t parameter) const;
  void shadow();  // sharded_join.cpp
  // --- sharded_call.cpp ---
  class Call;
  Tensor forward(FunctionRef<Tensor()> run_module);
  Tensor begin_call(FunctionRef<Tensor()> run_module);
  void begin_backward_of_call();
  void enter_call(autograd::Run& run);
  void end_failed_call();
  void end_call();
  int micro_batches_of_step() const { return group->size() * options.micro_batches_per_rank; }
  // --- plan.cpp ---
  ShardedPlan plan() const;  // without `units`
  void trace_plan() const;
  std::int64_t set_bytes() const;
  std::int64_t summary_bytes() const;

  // --- sharded_checkpoint.cpp ---
  std::vector<StatePart> parts() const;
  StatePart part_of(const std::string& name, const Tensor& parameter) const;
  void after_load();

  // Called when something reads parameters that are not there.
  void need(const Storage& storage);

  nn::Module& module;
  std::shared_ptr<ProcessGroup> group;       // of the gathers
  std::shared_ptr<ProcessGroup> reductions;  // a duplicate, because their order relative to gathers may vary
  ShardedDataParallelOptions options;
  optim::NamedParameters named;  // all parameters
  std::shared_ptr<ShardedAccessSupplier> access;
  std::vector<UnitLayout> layouts;
  std::vector<UnitParameters> units;
  std::unique_ptr<UnitGathers> gathers;
  std::unique_ptr<UnitGradients> gradients;
  std::vector<const FlatParameters*> trained;  // in the order of UnitGradients::flats()
  std::vector<TrainedPiece> pieces;            // of the trained parameters, in the order of the model
  std::vector<ShardedParameter> all;           // the pieces of all parameters, in the order of the model
  MicroBatchesInTurn micro_batches;
  Tensor summary;  // of the step, and a flag for each trained parameter: 1 if the rank used it
  std::vector<HookHandle> hooks;
  std::weak_ptr<Call> call;                           // the step in progress, if operator() began it
  const AccumulatedGradients* accumulated = nullptr;  // of the step in progress
  double accumulated_factor = 1;
  const autograd::Run* backward_run = nullptr;  // the backward whose gradients are reduced
  bool reducing = false;                        // the last micro-batch's backward runs
  int local_depth = 0;                          // > 0: inside no_sync
  int gathered_depth = 0;
  bool wants_stop = false;
  StepFailures failures;
  std::optional<Joining> joining;
  StepSummary last = {};   // sum over all ranks, in the last step
  std::vector<bool> used;  // by trained parameter: this rank used it in the last step that was reduced
  std::int64_t steps = 0;
  std::int64_t checked = 0;  // the value of `steps` at the last comparison between ranks
};

}  // namespace lockstep::parallel
