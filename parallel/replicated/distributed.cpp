#include "lockstep/parallel/replicated/distributed.h"

#include <algorithm>
#include <utility>

#include "lockstep/base/check_internal.h"
#include "lockstep/nn/deferred.h"
#include "lockstep/parallel/replicated/distributed_state_internal.h"
#include "lockstep/parallel/step/model_check_internal.h"
#include "lockstep/parallel/step/recorder.h"
#include "lockstep/parallel/step/shared_runner_internal.h"
#include "lockstep/parallel/step/step_failure_internal.h"
#include "lockstep/tensor/kernels/kernels_internal.h"
#include "lockstep/tensor/ops/ops_internal.h"
#include "lockstep/tensor/random/random.h"

namespace lockstep::parallel {

DistributedDataParallel::DistributedDataParallel(nn::Module& module, std::shared_ptr<ProcessGroup> group,
                                                 const DistributedDataParallelOptions& options) {
  nn::materialize(module);
  state_ = std::make_unique<State>(module, std::move(group), options);
  state_->check_ranks();
  state_->take_group();
  state_->share_state(0);
  share_added_values(state_->mode, module);
  state_->prepare();
  recorder_ = Recorder::from_environment(*this);
}

DistributedDataParallel::~DistributedDataParallel() = default;

DistributedDataParallel::State::State(nn::Module& module, std::shared_ptr<ProcessGroup> of_ranks,
                                      const DistributedDataParallelOptions& options)
    : DistributedTraining("DistributedDataParallel", module, std::move(of_ranks), options.micro_batches_per_rank,
                          options.weighting),
      options(options), schedule(module, options.bucket_cap_mb) {
  LOCKSTEP_CHECK(options.bucket_cap_mb > 0, "DistributedDataParallel: bucket_cap_mb is {}, expected more than 0",
                 options.bucket_cap_mb);
  LOCKSTEP_CHECK(!micro_batches.parameters().empty(),
                 "DistributedDataParallel: the module has no parameter that requires grad");
}

DistributedDataParallel::State::~State() { LaunchQueue::of(*group).remove(this); }

void DistributedDataParallel::State::check_ranks() {
  check_same_model(
      mode, module, *group,
      {fmt::format("bucket_cap_mb {}", options.bucket_cap_mb),
       fmt::format("micro_batches_per_rank {}", options.micro_batches_per_rank),
       fmt::format("sync_buffers {}", options.sync_buffers),
       fmt::format("weighting {}", static_cast<int>(options.weighting)),
       fmt::format("check_every {}", options.check_every), fmt::format("{} {}", version(), cpu_description())});
}

// Chooses a group on which no other model launches its buckets: the order of two models may differ from rank to rank.
void DistributedDataParallel::State::take_group() {
  const Tensor taken = raw::full({1}, LaunchQueue::of(*group).has_model_on(*group) ? 1 : 0, {.dtype = kInt32});
  group->all_reduce(taken, ReduceOp::kMax)->wait();
  if (taken.item<int>() != 0) group = group->duplicate();
  LaunchQueue::of(*group).add(this);
}

void DistributedDataParallel::State::share_state(int root) {
  for (const nn::Parameter& parameter : module.parameters())
    group->broadcast(parameter.master(), root, {.phase = Phase::kParameters})->wait();
  share_buffers(root);
  group->release_staging();
}

// --- a step -------------------------------------------------------------------------------------------------------

// Plans buckets, also again after parameters were frozen, unfrozen or converted; all ranks must change them alike.
void DistributedDataParallel::State::prepare() {
  require_outside_replicas(mode);
  micro_batches.update();
  if (schedule.fits(micro_batches.parameters())) {
    if (autograd::grad_mode() && schedule.use_next()) attach_reducer();
    return;
  }
  LOCKSTEP_CHECK(
      !joining,
      "DistributedDataParallel: inside join the trained parameters have to stay the same; freeze before join");
  schedule.plan(group);
  attach_reducer();
}

// The other ranks wait in the layers that they share with this one, or in the backward.
Tensor DistributedDataParallel::State::forward(FunctionRef<Tensor()> run_module) {
  const bool is_reduced = autograd::grad_mode() && local_depth == 0;
  const auto call = [&] {
    prepare();
    if (autograd::grad_mode()) watch_step(/*is_of_user=*/true);
    const random::MicroBatchGuard micro_batch(group->rank());
    return backwards.add(is_reduced ? micro_batches.buffers().call(run_module) : run_module());
  };
  return is_alone() && !is_reduced ? call() : run_or_end(mode, *this, call);
}

// Accumulated gradients that are means over all ranks are added after the step. Accumulated gradients of this rank
// (from no_sync), which are means over its micro-batches, are added to its sum before the reduction.
const std::vector<nn::Parameter>& DistributedDataParallel::State::with_means() const {
  return gradients_are_means ? micro_batches.parameters() : none;
}
const std::vector<nn::Parameter>& DistributedDataParallel::State::with_own() const {
  return gradients_are_means ? none : micro_batches.parameters();
}

// Whether to synchronise is decided here, while backward runs.
void DistributedDataParallel::State::reach(std::size_t, autograd::Run& run) {
  if (!step && local_depth == 0) begin_backward_step(run);
}

// A backward that the user called is a step of one micro-batch per rank. It owns the step, so that an error ends both.
void DistributedDataParallel::State::begin_backward_step(autograd::Run& run) {
  run.at_error([this](const std::exception& error) { end_failed_step(error); });
  LOCKSTEP_CHECK(!joining || (micro_batches_per_rank == 1 && weighting == Weighting::kEqual),
                 "DistributedDataParallel: inside join, with {} micro-batches per rank{}, joined ranks cannot "
                 "take part in the step of loss.backward(); call backward(x, y, loss_fn)",
                 micro_batches_per_rank, weighting == Weighting::kEqual ? "" : " weighted by samples");
  LaunchQueue& queue = LaunchQueue::of(*group);
  RunnerTraffic::open_step(module, &group->traffic());
  StepInputs of_run = inputs({});
  of_run.micro_batches_per_rank = 1;
  of_run.weighted = false;
  of_run.run = &run;
  auto owned = std::make_shared<ReducedStep>(schedule.buckets(), of_run, step);
  // Only launches: the callbacks of the other models in this backward launch theirs before any rank waits.
  run.at_end([&queue, &run, owned] {
    queue.launch_rest(run);
    run.at_end([&queue, &run, owned] { queue.finish_steps(run); });
  });
}

void DistributedDataParallel::State::reduced() {
  gradients_are_means = true;
  schedule.plan_by_order(group);
}

void DistributedDataParallel::State::end_step() {
  // Joined ranks have not taken the optimizer's steps.
  if (options.check_every == 0 || schedule.buckets().totals().steps % options.check_every != 0 || last.joined > 0)
    return;
  check_same_values(mode, module, *group, options.sync_buffers);
  check_same_whole_values(mode, module);
}

void DistributedDataParallel::State::check_join(const JoinOptions&) const {
  LOCKSTEP_CHECK(!LaunchQueue::of(*group).is_shared(),
                 "DistributedDataParallel: join: another model shares the group, and a joined rank can take part in "
                 "the steps of one model only; construct each model on its own group");
}

// Joined ranks have not taken the optimizer's steps, so they get the parameters of a rank that has.
void DistributedDataParallel::State::end_join() {
  const std::vector<std::int64_t> steps = joining->steps_of_all();
  const auto [fewest, most] = std::ranges::minmax_element(steps);
  if (*fewest < *most) share_state(static_cast<int>(std::ranges::max_element(steps) - steps.begin()));
}

// --- the public class ---------------------------------------------------------------------------------------------

Tensor DistributedDataParallel::operator()(const Tensor& x) {
  return state_->forward([&] { return state_->module(x); });
}

Tensor DistributedDataParallel::operator()(const std::vector<Tensor>& inputs) {
  return state_->forward([&] { return state_->module(inputs); });
}

Tensor DistributedDataParallel::run(const Batch& batch, MicroBatchLoss loss_fn) { return state_->run(batch, loss_fn); }
Tensor DistributedDataParallel::run_evaluation(const Batch& batch, MicroBatchLoss loss_fn) {
  return state_->evaluate(batch, loss_fn);
}
void DistributedDataParallel::join(FunctionRef<void()> body, const JoinOptions& options) {
  state_->join(body, options);
}

NoSync DistributedDataParallel::no_sync() {
  state_->gradients_are_means = false;  // from now on grad() is this rank's; a mean is the same on all ranks
  return NoSync(&state_->local_depth);
}

// If the model is in slices or stages, ranks of other groups wait for this one in the next step.
double DistributedDataParallel::clip_grad_norm_(double max_norm) {
  const auto clip = [&] { return clip_gradients(state_->module, max_norm); };
  return divides_model(state_->module) ? run_or_end(state_->mode, *state_, clip) : clip();
}

nn::Module& DistributedDataParallel::module() const { return state_->module; }
StepWatchers& DistributedDataParallel::watchers() { return state_->watchers; }
std::shared_ptr<ProcessGroup> DistributedDataParallel::group() const { return state_->group; }
void DistributedDataParallel::request_stop() { state_->wants_stop = true; }
bool DistributedDataParallel::stop_requested() const { return state_->last.stop > 0; }

void DistributedDataParallel::register_comm_hook(std::shared_ptr<CommHook> hook) {
  State& state = *state_;
  const std::int64_t steps = state.schedule.buckets().totals().steps;
  LOCKSTEP_CHECK(hook, "register_comm_hook: the hook is null");
  LOCKSTEP_CHECK(!state.schedule.hook(), "register_comm_hook: there is one already ({})",
                 state.schedule.hook()->describe());
  LOCKSTEP_CHECK(steps == 0, "register_comm_hook: after {} steps; register it before the first", steps);
  check_same_text("register_comm_hook: ranks have different hooks", hook->describe(), *state.group);
  state.schedule.set_hook(std::move(hook));
}

TrainingStats DistributedDataParallel::stats() const {
  TrainingStats stats;
  state_->schedule.buckets().fill_stats(stats);
  return stats;
}

const TrafficStats& DistributedDataParallel::traffic() {
  return state_->traffic.with(state_->module, &state_->group->traffic());
}

TrainingPlan DistributedDataParallel::plan() const {
  TrainingPlan plan = replicated_plan(state_->module, state_->micro_batches_per_rank);
  plan.bytes_per_step = plan.reduce_bytes = state_->schedule.buckets().bytes_sent();
  return plan;
}

std::vector<std::string> DistributedDataParallel::unused_parameters() const {
  return state_->schedule.buckets().unused();
}

}  // namespace lockstep::parallel
