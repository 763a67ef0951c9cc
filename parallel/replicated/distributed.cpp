#include "lockstep/parallel/replicated/distributed.h"

#include <algorithm>
#include <span>
#include <utility>

#include "lockstep/base/check_internal.h"
#include "lockstep/nn/utilities.h"
#include "lockstep/parallel/replicated/distributed_state_internal.h"
#include "lockstep/parallel/step/model_check_internal.h"
#include "lockstep/parallel/step/step_failure_internal.h"
#include "lockstep/tensor/kernels/kernels_internal.h"
#include "lockstep/tensor/ops/ops_internal.h"
#include "lockstep/tensor/random/random.h"

namespace lockstep::parallel {
namespace {

optim::NamedParameters trained(const nn::Module& module) {
  optim::NamedParameters named = module.named_parameters();
  std::erase_if(named, [](const auto& entry) { return !entry.second.master().requires_grad(); });
  return named;
}

// While it lives, gradients stay on this rank.
class LocalGuard {
 public:
  explicit LocalGuard(int& depth) : depth_(depth) { ++depth_; }
  ~LocalGuard() { --depth_; }
  LocalGuard(const LocalGuard&) = delete;
  LocalGuard& operator=(const LocalGuard&) = delete;

 private:
  int& depth_;
};

}  // namespace

DistributedDataParallel::DistributedDataParallel(nn::Module& module, std::shared_ptr<ProcessGroup> group,
                                                 const DistributedDataParallelOptions& options) {
  LOCKSTEP_CHECK(group, "DistributedDataParallel: the process group is null; call init_process_group to make one");
  LOCKSTEP_CHECK(nn::current_replica_view() == nullptr,
                 "DistributedDataParallel: cannot be constructed inside a DataParallel replica");
  LOCKSTEP_CHECK(options.bucket_cap_mb > 0, "DistributedDataParallel: bucket_cap_mb is {}, expected more than 0",
                 options.bucket_cap_mb);
  LOCKSTEP_CHECK(
      options.micro_batches_per_rank >= 1 && options.micro_batches_per_rank * group->size() <= random::kMaxMicroBatches,
      "DistributedDataParallel: {} micro-batches per rank on {} ranks, expected 1 to {} in total",
      options.micro_batches_per_rank, group->size(), random::kMaxMicroBatches);
  state_ = std::make_unique<State>(module, std::move(group), options);
  LOCKSTEP_CHECK(!state_->micro_batches.parameters().empty(),
                 "DistributedDataParallel: the module has no parameter that requires grad");
  check_same_model(
      "DistributedDataParallel", module, *state_->group,
      {fmt::format("bucket_cap_mb {}", options.bucket_cap_mb),
       fmt::format("micro_batches_per_rank {}", options.micro_batches_per_rank),
       fmt::format("sync_buffers {}", options.sync_buffers),
       fmt::format("weighting {}", static_cast<int>(options.weighting)),
       fmt::format("check_every {}", options.check_every), fmt::format("{} {}", version(), cpu_description())});
  state_->take_group();
  state_->share_state(0);
  state_->install();
}

DistributedDataParallel::~DistributedDataParallel() = default;

DistributedDataParallel::State::State(nn::Module& module, std::shared_ptr<ProcessGroup> group,
                                      const DistributedDataParallelOptions& options)
    : module(module), group(std::move(group)), options(options), micro_batches(module) {}

DistributedDataParallel::State::~State() { LaunchQueue::of(*group).remove(this); }

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

void DistributedDataParallel::State::share_buffers(int root) {
  for (const nn::Buffer& buffer : module.buffers())
    group->broadcast(buffer.master(), root, {.phase = Phase::kBuffers})->wait();
}

// Plans buckets, also again after parameters were frozen, unfrozen or converted; all ranks must change them alike.
void DistributedDataParallel::State::install() {
  LOCKSTEP_CHECK(nn::current_replica_view() == nullptr,
                 "DistributedDataParallel: cannot run inside a DataParallel replica");
  micro_batches.update();
  if (buckets && buckets->fit(micro_batches.parameters())) {
    if (next_buckets && autograd::grad_mode()) use(std::move(next_buckets));
    return;
  }
  LOCKSTEP_CHECK(
      !joining,
      "DistributedDataParallel: inside join the trained parameters have to stay the same; freeze before join");
  named = trained(module);
  use(std::make_unique<GradientBuckets>(
      named, group, GradientBuckets::plan(named, last_to_first(named.size()), options.bucket_cap_mb),
      buckets ? buckets->totals() : BucketTotals()));
  next_buckets = nullptr;
  knows_order = false;
}

void DistributedDataParallel::State::use(std::unique_ptr<GradientBuckets> planned) {
  buckets = std::move(planned);
  buckets->attach([this](std::size_t p, autograd::Run& run) { complete(p, run); });
  if (hook) buckets->set_hook(hook);
  micro_batches.sets().set_views(buckets->views());
}

// After the first step: plans buckets by the order in which gradients became ready on rank 0.
void DistributedDataParallel::State::plan_by_order() {
  knows_order = true;
  if (hook || buckets->count() < 2) return;  // a hook may keep state for each bucket; one bucket has nothing to gain
  const Tensor agreed = raw::empty({static_cast<std::int64_t>(order.size())}, {.dtype = kInt64});
  const std::span<std::int64_t> numbers = agreed.span<std::int64_t>();
  std::ranges::copy(order, numbers.begin());
  group->broadcast(agreed, 0)->wait();
  std::vector<BucketLayout> layouts =
      GradientBuckets::plan(named, {numbers.begin(), numbers.end()}, options.bucket_cap_mb);
  if (!buckets->has_layouts(layouts))
    next_buckets = std::make_unique<GradientBuckets>(named, group, std::move(layouts), buckets->totals());
}

// --- a step -------------------------------------------------------------------------------------------------------

StepInputs DistributedDataParallel::State::inputs(StepSummary own) {
  own.stop = wants_stop ? 1 : 0;
  return {.own = own,
          .ranks = group->size(),
          .weighted = options.weighting == Weighting::kSamples,
          .counts_joined = joining && joining->options().divide_by_initial_world_size,
          .order = knows_order ? nullptr : &order};
}

// All models in one backward are one step of the traffic counters.
void DistributedDataParallel::State::begin_traffic(const autograd::Run* run) {
  if (!run || !LaunchQueue::of(*group).has_step_of(*run)) group->traffic().begin_step();
}

// Whether to synchronise is decided here, while backward runs.
void DistributedDataParallel::State::complete(std::size_t parameter, autograd::Run& run) {
  if (!step && local_depth > 0) return;
  if (!step) begin_backward_step(run);
  LOCKSTEP_CHECK(
      !step->run() || step->run() == &run,
      "DistributedDataParallel: a backward that runs inside another one, in a hook or a Function, reached the "
      "same parameters; call autograd::grad there");
  step->complete(parameter, LaunchQueue::of(*group).is_shared());
}

// A backward that the user called is a step of one micro-batch per rank. It owns the step, so that an error ends both.
void DistributedDataParallel::State::begin_backward_step(autograd::Run& run) {
  LOCKSTEP_CHECK(!joining || (options.micro_batches_per_rank == 1 && options.weighting == Weighting::kEqual),
                 "DistributedDataParallel: inside join, with {} micro-batches per rank{}, joined ranks cannot "
                 "take part in the step of loss.backward(); call backward(x, y, loss_fn)",
                 options.micro_batches_per_rank, options.weighting == Weighting::kEqual ? "" : " weighted by samples");
  begin_traffic(&run);
  StepInputs of_run = inputs({});
  of_run.weighted = false;
  of_run.run = &run;
  auto owned = std::make_shared<DistributedStep>(*buckets, of_run, step);
  run.at_error([this](const std::exception& error) { end_failed_step(error); });
  LaunchQueue& queue = LaunchQueue::of(*group);
  // Only launches: the callbacks of the other models in this backward launch theirs before any rank waits.
  run.at_end([&queue, &run, owned] {
    queue.launch_rest(run);
    run.at_end([&queue, &run, owned] { queue.finish_steps(run); });
  });
}

// Afterwards nothing is in flight, so the next step may write gradients to the buckets.
void DistributedDataParallel::State::end_failed_step(const std::exception& error) {
  failures.tell({group.get()}, "DistributedDataParallel", error);
  buckets->drain();
}

void DistributedDataParallel::State::finish_step() {
  last = step->finish();
  gradients_are_means = true;
  if (!knows_order) plan_by_order();
  if (joining) joining->after_step(last.joined);
  if (options.sync_buffers && micro_batches.has_buffers()) share_buffers(joining ? joining->buffers_of() : 0);
  // Joined ranks have not taken the optimizer's steps.
  if (options.check_every > 0 && buckets->totals().steps % options.check_every == 0 && last.joined == 0)
    check_same_values("DistributedDataParallel", module, *group, options.sync_buffers);
}

Tensor DistributedDataParallel::operator()(const Tensor& x) {
  state_->install();
  const random::MicroBatchGuard micro_batch(state_->group->rank());
  return state_->module(x);
}

Tensor DistributedDataParallel::operator()(const std::vector<Tensor>& inputs) {
  state_->install();
  const random::MicroBatchGuard micro_batch(state_->group->rank());
  return state_->module(inputs);
}

std::vector<nn::Parameter> DistributedDataParallel::parameters() const { return state_->module.parameters(); }
nn::Module& DistributedDataParallel::module() const { return state_->module; }
ProcessGroup& DistributedDataParallel::group() const { return *state_->group; }

double DistributedDataParallel::clip_grad_norm_(double max_norm) { return nn::clip_grad_norm_(parameters(), max_norm); }

// Accumulated gradients that are means over all ranks are added after the step. Accumulated gradients of this rank
// (from no_sync), which are means over its micro-batches, are added to its sum before the reduction.
Tensor DistributedDataParallel::run(const Batch& batch, MicroBatchLoss loss_fn) {
  State& state = *state_;
  state.install();
  const MicroBatchPlan plan{.op = "DistributedDataParallel",
                            .samples = rows_of("DistributedDataParallel", batch),
                            .micro_batches = state.options.micro_batches_per_rank,
                            .weighting = state.options.weighting};
  LOCKSTEP_CHECK(
      !state.micro_batches.parameters().empty(),
      "DistributedDataParallel: no parameter of the module requires grad; unfreeze one, or do not call backward");
  AccumulatedGradients accumulated(state.micro_batches.parameters());
  if (state.local_depth > 0) {
    const Tensor loss = state.run_local(plan, batch, loss_fn);
    accumulated.add_back();
    state.gradients_are_means = false;
    return loss;
  }
  const bool were_means = state.gradients_are_means;
  const Tensor loss =
      run_or_end(state, [&] { return state.run_step(plan, batch, loss_fn, were_means ? nullptr : &accumulated); });
  were_means ? accumulated.add_back() : accumulated.forget();
  return loss;
}

// A step inside no_sync.
Tensor DistributedDataParallel::State::run_local(const MicroBatchPlan& plan, const Batch& batch,
                                                 MicroBatchLoss loss_fn) {
  if (plan.samples == 0) return raw::full(Shape(), 0, {.dtype = kFloat32});
  std::vector<Tensor> losses;
  micro_batches.run(plan, group->rank() * plan.micro_batches, batch, loss_fn, losses, [](bool) {});
  micro_batches.take_gradients(plan.scale());
  return combine_losses(losses, plan.scale());
}

// A synchronised step. The backward of the last micro-batch fills the buckets.
Tensor DistributedDataParallel::State::run_step(const MicroBatchPlan& plan, const Batch& batch, MicroBatchLoss loss_fn,
                                                AccumulatedGradients* accumulated) {
  std::vector<Tensor> losses;
  std::optional<DistributedStep> owned;
  std::optional<LocalGuard> local(local_depth);
  const auto begin = [&](bool is_last) {
    if (!is_last) return;
    StepInputs of_step = inputs({.micro_batches = plan.running(),
                                 .samples = plan.samples,
                                 .loss = losses.empty() ? 0 : combine_losses(losses).item<double>()});
    of_step.micro_batches_per_rank = plan.micro_batches;
    of_step.sets = &micro_batches.sets();
    of_step.accumulated = accumulated;
    of_step.accumulated_factor = plan.samples > 0 ? 1 / plan.scale().first : plan.micro_batches;
    local.reset();
    begin_traffic(nullptr);
    owned.emplace(*buckets, of_step, step);
  };
  micro_batches.run(plan, group->rank() * plan.micro_batches, batch, loss_fn, losses, begin);
  if (losses.empty()) {  // no samples, but the other ranks wait for this rank's buckets
    micro_batches.sets().begin(0, 1);
    begin(true);
  }
  finish_step();
  return losses.empty() ? owned->mean_loss() : raw::to(owned->mean_loss(), losses[0].dtype());
}

DistributedDataParallel::NoSync DistributedDataParallel::no_sync() {
  ++state_->local_depth;
  state_->gradients_are_means = false;  // from now on grad() is this rank's; a mean is the same on all ranks
  return NoSync(this);
}

DistributedDataParallel::NoSync::~NoSync() {
  if (owner_) --owner_->state_->local_depth;
}

void DistributedDataParallel::register_comm_hook(std::shared_ptr<CommHook> hook) {
  State& state = *state_;
  LOCKSTEP_CHECK(hook, "register_comm_hook: the hook is null");
  LOCKSTEP_CHECK(!state.hook, "register_comm_hook: there is one already ({})", state.hook->describe());
  LOCKSTEP_CHECK(state.buckets->totals().steps == 0, "register_comm_hook: after {} steps; register it before the first",
                 state.buckets->totals().steps);
  check_same_text("register_comm_hook: ranks have different hooks", hook->describe(), *state.group);
  state.hook = hook;
  state.buckets->set_hook(std::move(hook));
}

void DistributedDataParallel::request_stop() { state_->wants_stop = true; }
bool DistributedDataParallel::stop_requested() const { return state_->last.stop > 0; }

DistributedDataParallelStats DistributedDataParallel::stats() const {
  DistributedDataParallelStats stats;
  state_->buckets->fill(stats);
  return stats;
}

std::vector<std::string> DistributedDataParallel::unused_parameters() const { return state_->buckets->unused(); }

}  // namespace lockstep::parallel
