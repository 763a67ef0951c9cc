#include "lockstep/parallel/sharded/sharded.h"

#include "lockstep/base/check_internal.h"
#include "lockstep/nn/deferred.h"
#include "lockstep/parallel/sharded/sharded_state_internal.h"
#include "lockstep/parallel/step/step_failure_internal.h"
#include "lockstep/tensor/random/random.h"

namespace lockstep::parallel {
namespace {

void check_options(const ShardedDataParallelOptions& options, int ranks) {
  LOCKSTEP_CHECK(options.stage >= 1 && options.stage <= 3,
                 "ShardedDataParallel: stage is {}, expected 1 (optimizer state), 2 (and gradients) or 3 (and "
                 "parameters)",
                 options.stage);
  LOCKSTEP_CHECK(
      options.micro_batches_per_rank >= 1 && options.micro_batches_per_rank * ranks <= random::kMaxMicroBatches,
      "ShardedDataParallel: {} micro-batches per rank on {} ranks, expected 1 to {} in total",
      options.micro_batches_per_rank, ranks, random::kMaxMicroBatches);
  for (const std::optional<DType>& dtype : {options.mixed_precision.parameters, options.mixed_precision.reduce})
    LOCKSTEP_CHECK(
        !dtype || is_floating_point(*dtype),
        "ShardedDataParallel: .mixed_precision has {}, expected a floating-point dtype, for example kBFloat16",
        name(*dtype));
}

// Where a parameter's values are, or will be.
Device device_of(const nn::Parameter& parameter) {
  return nn::is_deferred(parameter.master()) ? Device() : parameter.master().device();
}

}  // namespace

ShardedDataParallel::ShardedDataParallel(nn::Module& module, std::shared_ptr<ProcessGroup> group,
                                         const ShardedDataParallelOptions& options) {
  LOCKSTEP_CHECK(group, "ShardedDataParallel: the process group is null; call init_process_group to make one");
  LOCKSTEP_CHECK(nn::current_replica_view() == nullptr,
                 "ShardedDataParallel: cannot be constructed inside a DataParallel replica");
  check_options(options, group->size());
  bool any_trained = false;
  const auto named = module.named_parameters();
  for (const auto& [name, parameter] : named) {
    LOCKSTEP_CHECK(device_of(parameter) == device_of(named.front().second),
                   "ShardedDataParallel: parameter {} is on {}, {} on {}; expected all on one device", name,
                   device_of(parameter).to_string(), named.front().first, device_of(named.front().second).to_string());
    LOCKSTEP_CHECK(
        parameter.sharding() == nn::Sharding::kNone,
        "ShardedDataParallel: parameter {} is sharded already; make a new module, and load a checkpoint into its run",
        name);
    any_trained = any_trained || parameter.master().requires_grad();
  }
  LOCKSTEP_CHECK(any_trained, "ShardedDataParallel: the module has no parameter that requires grad");
  state_ = std::make_unique<State>(module, std::move(group), options);
}

ShardedDataParallel::~ShardedDataParallel() = default;

nn::Module& ShardedDataParallel::module() const { return state_->module; }

std::vector<nn::Parameter> ShardedDataParallel::parameters() const {
  std::vector<nn::Parameter> parameters;
  for (const ShardedParameter& each : state_->all) parameters.push_back(each.parameter);
  return parameters;
}

std::vector<ShardedParameter> ShardedDataParallel::named_parameters() const { return state_->all; }

Tensor ShardedDataParallel::run(const Batch& batch, MicroBatchLoss loss_fn) {
  State& state = *state_;
  state.check_usable();
  const MicroBatchPlan plan{.op = "ShardedDataParallel",
                            .samples = rows_of("ShardedDataParallel", batch),
                            .micro_batches = state.options.micro_batches_per_rank,
                            .weighting = state.options.weighting};
  return run_or_end(state, [&] {
    return state.local_depth > 0 ? state.run_local(plan, batch, loss_fn) : state.run_step(plan, batch, loss_fn);
  });
}

double ShardedDataParallel::clip_grad_norm_(double max_norm) {
  return clip_pieces(*state_->group, state_->pieces, *state_->gradients, max_norm);
}

void ShardedDataParallel::gathered(FunctionRef<void()> body) {
  State& state = *state_;
  struct Depth {
    State& state;
    explicit Depth(State& state) : state(state) { ++state.gathered_depth; }
    ~Depth() {
      if (--state.gathered_depth > 0) return;
      for (UnitParameters& unit : state.units) unit.hide();
    }
  };
  state.end_failed_call();
  LOCKSTEP_CHECK(!state.joining,
                 "ShardedDataParallel: gathered inside join, in which ranks that have joined take no part");
  LOCKSTEP_CHECK(!state.gathers->is_running(),
                 "ShardedDataParallel: gathered inside a step, or before the backward of operator()'s result");
  const Depth depth(state);
  if (state.gathered_depth > 1) return body();
  state.gather_all();
  const std::vector<Tensor> kept = state.copy_values();
  try {
    body();
  } catch (...) {
    state.undo_changes(kept);
    throw;
  }
  const UnitParameters* const changed = state.undo_changes(kept);
  LOCKSTEP_CHECK(!changed,
                 "ShardedDataParallel: parameters of {} were changed inside gathered, and the change is undone; change "
                 "a sharded model by its optimizer or by parallel::load_checkpoint",
                 changed->name());
}

ShardedDataParallel::NoSync ShardedDataParallel::no_sync() {
  LOCKSTEP_CHECK(!state_->joining,
                 "ShardedDataParallel: no_sync inside join, in which ranks that have joined take no part; set "
                 ".micro_batches_per_rank to accumulate gradients");
  ++state_->local_depth;
  return NoSync(this);
}

ShardedDataParallel::NoSync::~NoSync() {
  if (owner_) --owner_->state_->local_depth;
}

void ShardedDataParallel::request_stop() { state_->wants_stop = true; }
bool ShardedDataParallel::stop_requested() const { return state_->last.stop > 0; }

DistributedDataParallelStats ShardedDataParallel::stats() const {
  const State& state = *state_;
  DistributedDataParallelStats stats{.buckets = {}, .steps = state.steps, .copies = state.gradients->copies()};
  state.gradients->fill(stats.buckets);
  for (const BucketStats& unit : stats.buckets) stats.reduced_bytes += unit.bytes * state.steps;
  for (std::size_t p = 0; p < state.gradients->size(); ++p)
    stats.copies += autograd::gradient_copies(state.gradients->leaf(p));
  const CommunicationOverlap overlap = communication_overlap(stats.buckets);
  stats.overlap = overlap.share();
  stats.overlap_bytes = overlap.byte_share();
  return stats;
}

std::vector<std::string> ShardedDataParallel::unused_parameters() const {
  std::vector<std::string> names;
  for (std::size_t p = 0; p < state_->gradients->size(); ++p) {
    if (!state_->used[p]) names.push_back(state_->gradients->name(p));
  }
  return names;
}

}  // namespace lockstep::parallel
