#include "lockstep/parallel/sharded/sharded.h"

#include "lockstep/base/check_internal.h"
#include "lockstep/nn/deferred.h"
#include "lockstep/parallel/sharded/sharded_state_internal.h"
#include "lockstep/parallel/step/recorder.h"
#include "lockstep/parallel/step/shared_runner_internal.h"
#include "lockstep/parallel/step/step_failure_internal.h"

namespace lockstep::parallel {
namespace {

void check_options(const ShardedDataParallelOptions& options) {
  LOCKSTEP_CHECK(options.stage >= 1 && options.stage <= 3,
                 "ShardedDataParallel: stage is {}, expected 1 (optimizer state), 2 (and gradients) or 3 (and "
                 "parameters)",
                 options.stage);
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

// All on one device, none sharded, and one at least that requires grad.
void check_parameters(const optim::NamedParameters& named) {
  bool any_trained = false;
  for (const auto& [name, parameter] : named) {
    LOCKSTEP_CHECK(device_of(parameter) == device_of(named.front().second),
                   "ShardedDataParallel: parameter {} is on {}, {} on {}; expected all on one device", name,
                   device_of(parameter).to_string(), named.front().first, device_of(named.front().second).to_string());
    LOCKSTEP_CHECK(
        parameter.sharding() == nn::Sharding::kNone || parameter.sharding() == nn::Sharding::kStage,
        "ShardedDataParallel: parameter {} is sharded already; make a new module, and load a checkpoint into its run",
        name);
    any_trained = any_trained || parameter.master().requires_grad();
  }
  LOCKSTEP_CHECK(any_trained, "ShardedDataParallel: the module has no parameter that requires grad");
}

}  // namespace

ShardedDataParallel::ShardedDataParallel(nn::Module& module, std::shared_ptr<ProcessGroup> group,
                                         const ShardedDataParallelOptions& options) {
  check_options(options);
  check_parameters(module.named_parameters());
  state_ = std::make_unique<State>(module, std::move(group), options);
  recorder_ = Recorder::from_environment(*this);
}

ShardedDataParallel::~ShardedDataParallel() = default;

nn::Module& ShardedDataParallel::module() const { return state_->module; }
StepWatchers& ShardedDataParallel::watchers() { return state_->watchers; }

std::vector<nn::Parameter> ShardedDataParallel::parameters() const {
  std::vector<nn::Parameter> parameters;
  for (const ShardedParameter& each : state_->all) parameters.push_back(each.parameter);
  return parameters;
}

std::vector<ShardedParameter> ShardedDataParallel::named_parameters() const { return state_->all; }

Tensor ShardedDataParallel::run(const Batch& batch, MicroBatchLoss loss_fn) { return state_->run(batch, loss_fn); }

Tensor ShardedDataParallel::run_evaluation(const Batch& batch, MicroBatchLoss loss_fn) {
  return state_->evaluate(batch, loss_fn);
}

double ShardedDataParallel::clip_grad_norm_(double max_norm) {
  return run_or_end(state_->mode, *state_, [&] {
    return clip_pieces(*state_->group, state_->module, state_->named, *state_->gradients, max_norm);
  });
}

void ShardedDataParallel::gathered(FunctionRef<void()> body) { state_->gathered(body); }

void ShardedDataParallel::join(FunctionRef<void()> body, const JoinOptions& options) { state_->join(body, options); }

NoSync ShardedDataParallel::no_sync() {
  LOCKSTEP_CHECK(!state_->joining,
                 "ShardedDataParallel: no_sync inside join, in which ranks that have joined take no part; set "
                 ".micro_batches_per_rank to accumulate gradients");
  return NoSync(&state_->local_depth);
}

std::shared_ptr<ProcessGroup> ShardedDataParallel::group() const { return state_->group; }
const TrafficStats& ShardedDataParallel::traffic() {
  return state_->traffic.with(state_->module, &state_->group->traffic());
}
void ShardedDataParallel::request_stop() { state_->wants_stop = true; }
bool ShardedDataParallel::stop_requested() const { return state_->last.stop > 0; }

TrainingStats ShardedDataParallel::stats() const {
  TrainingStats stats;
  state_->gradients->fill_stats(stats);
  return stats;
}

std::vector<std::string> ShardedDataParallel::unused_parameters() const { return state_->gradients->unused(); }

}  // namespace lockstep::parallel
