// The state of a ShardedDataParallel.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "lockstep/parallel/sharded/sharded.h"
#include "lockstep/parallel/sharded/sharded_norm_internal.h"
#include "lockstep/parallel/sharded/unit_gathers_internal.h"
#include "lockstep/parallel/sharded/unit_gradients_internal.h"
#include "lockstep/parallel/step/distributed_training_internal.h"
#include "lockstep/parallel/step/model_state_internal.h"
#include "lockstep/parallel/step/stage_runner_internal.h"

namespace lockstep::parallel {

class ShardedAccessSupplier;

// The module's parameters are in one of these states, which UnitGathers keeps:
//
//   distributed  outside steps: this rank has its pieces, and reading a parameter is an error
//   in a step    units are gathered as forward and backward need them (unit_gathers_internal.h). The step is that of
//                backward(x, y, loss_fn), or it was begun by operator(): then `call` refers to it
//   gathered     inside `gathered`: all parameters are there, on all ranks
struct ShardedDataParallel::State final : DistributedTraining {
  State(nn::Module& module, std::shared_ptr<ProcessGroup> group, const ShardedDataParallelOptions& options);
  ~State() override;

  // --- construction (sharded_state.cpp) ---
  void check_ranks();
  void make_units();
  std::vector<UnitGathers::Chunk> chunks_of_units() const;
  void disconnect();
  void make_pieces();
  ShardedParameter piece_of(const std::pair<std::string, nn::Parameter>& whole, const Tensor& shard,
                            std::int64_t offset) const;
  void install_hooks();
  bool is_resident() const { return options.stage < 3 || !options.reshard_after_forward; }
  // In pipeline stages no rank may wait for the buffer in the middle of the schedule.
  bool is_rotating() const { return options.stage > 1 && options.micro_batches_per_rank == 1 && !stage_runner(module); }
  bool is_offloaded() const;

  // --- a step (sharded_step.cpp) ---
  void prepare() override;
  GradientReducer& reducer() override { return *gradients; }
  const std::vector<nn::Parameter>& with_means() const override { return of_pieces; }
  const std::vector<nn::Parameter>& with_own() const override { return micro_batches.parameters(); }
  void begin_step() override;
  void begin_micro_batches() override;
  MicroBatchObserver& observer() override { return *gathers; }
  void reach(std::size_t parameter, autograd::Run& run) override;
  std::vector<ShardedParameter> stepped() const override { return all; }
  bool shares_buffers() const override { return true; }
  void end_local_step() override;
  void drop_partial_gradients() override;
  std::vector<ProcessGroup*> groups() const override { return {group.get(), &gradients->group()}; }
  void check_join(const JoinOptions& options) const override;
  void drop_gradients() override;
  bool is_alone() const override { return false; }  // gathers are collectives also in no_sync
  void enter_backward(std::size_t unit);
  // Called when something reads parameters that are not there.
  void need(const Storage& storage);

  // --- all parameters, outside a step (sharded_gathered.cpp) ---
  void gathered(FunctionRef<void()> body);
  void gather_all(const char* purpose);
  void upload(const FlatParameters& flat);
  void upload_trained();
  std::vector<Tensor> copy_values() const;
  const UnitParameters* undo_changes(const std::vector<Tensor>& kept);
  void check_gathered();

  // --- operator() and a backward that the user calls (sharded_call.cpp) ---
  class Call;
  Tensor forward(FunctionRef<Tensor()> run_module);
  Tensor begin_call(FunctionRef<Tensor()> run_module);
  void begin_backward_of_call();
  void end_call_with(autograd::Run& run);
  void end_failed_call();
  void end_call();

  // --- plan.cpp ---
  TrainingPlan plan() const;  // without `units`
  void trace_plan() const;
  std::int64_t set_bytes() const;

  // --- sharded_checkpoint.cpp ---
  std::vector<StatePart> parts(const StateRanks& ranks) const;
  StatePart piece_in_state(const nn::ListedTensor& parameter, const StateRanks& ranks) const;
  void after_load();

  ShardedDataParallelOptions options;
  optim::NamedParameters named;  // all parameters
  std::shared_ptr<ShardedAccessSupplier> access;
  std::vector<UnitLayout> layouts;
  std::vector<UnitParameters> units;
  std::unique_ptr<UnitGathers> gathers;
  std::unique_ptr<UnitGradients> gradients;
  std::vector<const FlatParameters*> trained;  // in the order of UnitGradients::flats()
  std::vector<nn::Parameter> of_pieces;        // the trained pieces, in the order of the model
  std::vector<ShardedParameter> all;           // the pieces of all parameters, in the order of the model
  std::vector<HookHandle> hooks;               // of the module and its units
  std::weak_ptr<Call> call;                    // the step in progress, if operator() began it
};

}  // namespace lockstep::parallel
