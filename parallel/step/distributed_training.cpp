#include "lockstep/parallel/step/distributed_training_internal.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "lockstep/autograd/history_internal.h"
#include "lockstep/base/check_internal.h"
#include "lockstep/base/finally_internal.h"
#include "lockstep/nn/layers/batch_norm_internal.h"
#include "lockstep/parallel/step/agreement_internal.h"
#include "lockstep/parallel/step/model_check_internal.h"
#include "lockstep/parallel/step/shared_runner_internal.h"
#include "lockstep/tensor/ops/ops_internal.h"
#include "lockstep/tensor/random/random.h"

namespace lockstep::parallel {

namespace {

// Before the module is changed: replicas that construct a mode would change it at the same time.
nn::Module& outside_replicas(const char* mode, nn::Module& module) {
  require_outside_replicas(mode);
  return module;
}

}  // namespace

DistributedTraining::DistributedTraining(const char* mode, nn::Module& module, std::shared_ptr<ProcessGroup> of_ranks,
                                         int micro_batches_per_rank, Weighting weighting)
    : mode(mode), module(outside_replicas(mode, module)), group(std::move(of_ranks)),
      micro_batches_per_rank(micro_batches_per_rank), weighting(weighting), micro_batches(module),
      backwards([this](autograd::Run& run) { begin_backward(run); }) {
  LOCKSTEP_CHECK(group, "{}: the process group is null; call init_process_group to make one", mode);
  LOCKSTEP_CHECK(micro_batches_per_rank >= 1 && micro_batches_per_rank * group->size() <= random::kMaxMicroBatches,
                 "{}: {} micro-batches per rank on {} ranks, expected 1 to {} in total", mode, micro_batches_per_rank,
                 group->size(), random::kMaxMicroBatches);
  require_runner_ranks(mode, module, group.get());
}

DistributedTraining::~DistributedTraining() {
  for (HookHandle& hook : leaf_hooks_) hook.remove();
}

void DistributedTraining::attach_reducer() {
  for (HookHandle& hook : leaf_hooks_) hook.remove();
  leaf_hooks_.clear();
  for (std::size_t p = 0; p < reducer().size(); ++p)
    leaf_hooks_.push_back(
        autograd::register_leaf_hook(reducer().leaf(p), [this, p](autograd::Run& run) { complete(p, run); }));
  micro_batches.sets().set_views(reducer().views());
}

void DistributedTraining::share_buffers(int root) {
  for (const nn::Buffer& buffer : module.buffers())
    group->broadcast(buffer.master(), root, {.phase = Phase::kBuffers})->wait();
}

// --- a step -------------------------------------------------------------------------------------------------------

MicroBatchPlan DistributedTraining::plan(std::int64_t samples) const {
  return {.op = mode, .samples = samples, .micro_batches = micro_batches_per_rank, .weighting = weighting};
}

StepInputs DistributedTraining::inputs(StepSummary own) const {
  own.stop = wants_stop || stop_of_parts_ ? 1 : 0;
  own.joined = joining && joining->is_out() ? 1 : 0;
  return {.own = own,
          .ranks = group->size(),
          .micro_batches_per_rank = micro_batches_per_rank,
          .weighted = weighting == Weighting::kSamples,
          .counts_joined = joining && joining->options().divide_by_initial_world_size};
}

void DistributedTraining::watch_step(bool is_of_user) {
  RunnerTraffic::open_step(module, &group->traffic());
  const bool is_out = joining && joining->is_out();
  watchers.begin_step({.is_of_user = is_of_user,
                       .has_parameters = !is_out || static_cast<bool>(joining->options().shadow_step),
                       .has_same_buffers = shares_buffers()});
}

Tensor DistributedTraining::run(const Batch& batch, MicroBatchLoss loss_fn) {
  const auto any_step = [&] {
    prepare();
    const MicroBatchPlan of_batch = plan(rows_of(mode, batch));
    LOCKSTEP_CHECK(!micro_batches.parameters().empty(),
                   "{}: no parameter of the module requires grad; unfreeze one, or do not call backward", mode);
    return local_depth > 0 ? run_local(of_batch, batch, loss_fn) : run_step(of_batch, batch, loss_fn);
  };
  return local_depth > 0 && is_alone() ? any_step() : run_or_end(mode, *this, any_step);
}

void DistributedTraining::run_micro_batches(const MicroBatchPlan& of_batch, const Batch& batch, MicroBatchLoss loss_fn,
                                            std::vector<Tensor>& losses, FunctionRef<void()> before_last,
                                            FunctionRef<void(int)> after_chunk) {
  std::vector<std::shared_ptr<const SharedRunner>> runners = shared_runners(module);
  if (!runners.empty()) require_runner_ranks(mode, module, group.get());
  stop_of_parts_ =
      check_same_step_of_parts(mode, module, batch, {.evaluates = of_batch.evaluates, .wants_stop = wants_stop});
  std::erase_if(runners, [](const auto& runner) { return runner->part != SharedRunner::Part::kSequence; });
  const auto runs = [&] {
    std::int64_t sum = 0;
    for (const auto& runner : runners) sum += runner->runs();
    return sum;
  };
  const std::int64_t runs_before = runs();
  require_samples(of_batch.samples);
  begin_micro_batches();
  micro_batches.run(of_batch, group->rank() * micro_batches_per_rank, batch, loss_fn, losses, observer(), before_last,
                    after_chunk);
  LOCKSTEP_CHECK(runners.empty() || losses.empty() || runs() > runs_before,
                 "{}: the loss function did not call the context-parallel module, so that attention had this rank's "
                 "keys alone; call module(x) and not module.forward(x)",
                 mode);
}

// The other ranks would wait for this rank's statistics.
void DistributedTraining::require_samples(std::int64_t samples) {
  if (samples > 0 || runner_groups(module, SharedRunner::Part::kBatch).empty()) return;
  for (const nn::Module* const each : module.modules()) {
    const auto* const layer = dynamic_cast<const nn::BatchNorm*>(each);
    LOCKSTEP_CHECK(!layer || !layer->is_training() || !nn::BatchNormAccess::shared(*layer),
                   "{}: rank {} has no samples in this step, and the SyncBatchNorm of the other ranks waits for its "
                   "statistics\nGive each rank a sample, or call run(x) with no rows and loss.backward()",
                   mode, group->rank());
  }
}

// The backward of the last micro-batch fills the reducer. If the model is in stages, each chunk does after its last
// backward, between the backwards of others, whose leaf hooks `local` keeps from filling it.
Tensor DistributedTraining::run_step(MicroBatchPlan of_batch, const Batch& batch, MicroBatchLoss loss_fn) {
  of_batch.reduced_over = group.get();
  begin_step();
  watch_step(/*is_of_user=*/false);
  AccumulatedGradients means(with_means()), own(with_own());
  const OnError drop([this] { drop_partial_gradients(); });
  std::vector<Tensor> losses;
  std::optional<ReducedStep> owned;
  std::optional<NoSync> local(&local_depth);
  const auto inputs_with = [&](double loss) {
    StepInputs of_step = inputs({.micro_batches = of_batch.running(), .samples = of_batch.samples, .loss = loss});
    of_step.sets = &micro_batches.sets();
    of_step.accumulated = &own;
    of_step.accumulated_factor = of_batch.samples > 0 ? 1 / of_batch.scale().first : micro_batches_per_rank;
    return of_step;
  };
  const auto begin_last = [&] {
    local.reset();
    const StepInputs of_step = inputs_with(losses.empty() ? 0 : combine_losses(losses).item<double>());
    owned ? owned->set_summary(of_step.own) : static_cast<void>(owned.emplace(reducer(), of_step, step));
  };
  const auto fill = [&](int chunk) {
    if (!owned) owned.emplace(reducer(), inputs_with(0), step);  // the losses are known at the end
    for (const std::size_t p : micro_batches.parameters_of(chunk)) owned->complete(p);
  };
  run_micro_batches(of_batch, batch, loss_fn, losses, begin_last, fill);
  // In stages; or without samples, when the other ranks wait for this rank's gradients.
  if (local) begin_last();
  finish_step();
  if (last.joined == 0 && !std::exchange(has_checked_gradients_, true)) check_first_gradients();
  own.forget();
  means.add_back();
  if (last.joined < group->size())
    watchers.gradients_ready();
  else
    watchers.drop_step();
  return losses.empty() ? owned->mean_loss() : raw::to(owned->mean_loss(), losses[0].dtype());
}

// All ranks of the mode throw, also those with other pieces of the parameters.
void DistributedTraining::check_first_gradients() {
  if (runner_groups(module, SharedRunner::Part::kModel).empty()) return;
  std::optional<InvalidArgument> wrong;
  try {
    check_same_whole_gradients(mode, module, stepped());
  } catch (const InvalidArgument& error) {
    wrong = error;
  }
  on_all_ranks(group.get(), [&] {
    if (wrong) throw InvalidArgument(*wrong);
  });
}

void DistributedTraining::finish_step() {
  last = step->finish();
  RunnerTraffic::close_step(module, &group->traffic());
  if (last.joined == group->size()) return;
  reduced();
  if (joining) joining->after_step(last.joined);
  micro_batches.buffers().apply_updates(group.get(), micro_batches_per_rank);
  if (shares_buffers() && !micro_batches.buffers().empty()) share_buffers(joining ? joining->buffers_of() : 0);
  end_step();
}

// A step inside no_sync: the gradients stay in the module's parameters.
Tensor DistributedTraining::run_local(const MicroBatchPlan& of_batch, const Batch& batch, MicroBatchLoss loss_fn) {
  watch_step(/*is_of_user=*/false);
  const AccumulatedGradients means(with_means());
  AccumulatedGradients own(with_own());
  const OnError drop([this] { drop_partial_gradients(); });
  std::vector<Tensor> losses;
  run_micro_batches(of_batch, batch, loss_fn, losses, [] {});
  finish_local(of_batch, own);
  return losses.empty() ? raw::full(Shape(), 0, {.dtype = kFloat32}) : combine_losses(losses, of_batch.scale());
}

// Running statistics are this rank's until the next step that is reduced, which shares those of one rank.
void DistributedTraining::finish_local(const MicroBatchPlan& of_batch, AccumulatedGradients& own) {
  micro_batches.buffers().apply_updates();
  if (of_batch.running() > 0) {
    micro_batches.take_gradients(of_batch.scale());
    own.add_back();
  }
  end_local_step();
}

// The sum over the ranks is that of a step's summary. No rank returns before all have read what is gathered.
Tensor DistributedTraining::evaluate(const Batch& batch, MicroBatchLoss loss_fn) {
  return run_or_end(mode, *this, [&] {
    prepare();
    MicroBatchPlan of_batch = plan(rows_of(mode, batch));
    of_batch.evaluates = true;
    std::vector<Tensor> losses;
    run_micro_batches(of_batch, batch, loss_fn, losses, [] {});
    micro_batches.buffers().apply_updates(group.get(), micro_batches_per_rank);
    const StepInputs of_step = inputs({.micro_batches = of_batch.running(),
                                       .samples = of_batch.samples,
                                       .loss = losses.empty() ? 0 : combine_losses(losses).item<double>()});
    const Tensor summary = raw::empty({StepSummary::kElements}, {.dtype = reducer().dtype()});
    of_step.own.write(summary);
    group->all_reduce_scaled(summary, of_step.scale())->wait();
    const Tensor loss = of_step.mean_loss(StepSummary::read(summary, of_step.scale()), summary.dtype());
    return losses.empty() ? loss : raw::to(loss, losses[0].dtype());
  });
}

// A backward that the user called. Its exception is told also if no parameter has been reached.
void DistributedTraining::begin_backward(autograd::Run& run) {
  if (run.accumulates()) RunnerTraffic::open_step(module, &group->traffic());
  if (is_alone() && (local_depth > 0 || !run.accumulates())) return;
  run.at_error([this](const std::exception& error) { end_failed_step(error); });
}

// The leaf hook of a parameter.
void DistributedTraining::complete(std::size_t parameter, autograd::Run& run) {
  reach(parameter, run);
  if (!step || local_depth > 0) return;
  LOCKSTEP_CHECK(step->takes(run),
                 "{}: a backward that runs inside another one, in a hook or a Function, reached parameter {}; call "
                 "autograd::grad there",
                 mode, reducer().name(parameter));
  step->complete(parameter);
}

void DistributedTraining::end_failed_step(const std::exception& error) {
  std::vector<ProcessGroup*> waiting = groups();
  for (ProcessGroup* of_runner : runner_groups(module)) {
    if (std::ranges::find(waiting, of_runner) == waiting.end()) waiting.push_back(of_runner);
  }
  RunnerTraffic::close_step(module, &group->traffic());
  micro_batches.buffers().drop_updates();
  failures_.tell(waiting, mode, error);
  abandon_step();
}

// --- join: ranks with different numbers of batches -----------------------------------------------------------------
// The step's summary says how many ranks have joined, without a message of its own.

void DistributedTraining::join(FunctionRef<void()> body, const JoinOptions& options) {
  if (!options.enable) return body();
  LOCKSTEP_CHECK(!joining, "{}: join inside join of the same model", mode);
  LOCKSTEP_CHECK(
      runner_groups(module, SharedRunner::Part::kBatch).empty(),
      "{}: join of a model with SyncBatchNorm, whose statistics need every rank in each step; give all ranks "
      "the same number of batches (DistributedSampler)",
      mode);
  LOCKSTEP_CHECK(local_depth == 0, "{}: join inside no_sync, where no step is synchronised", mode);
  const Finally leave([this] { joining.reset(); });
  run_or_end(mode, *this, [&] {
    check_join(options);
    prepare();
    joining.emplace(mode, options, *group);
    body();
    shadow();
  });
  end_join();
}

void DistributedTraining::drop_gradients() {
  for (const nn::Parameter& parameter : micro_batches.parameters()) parameter.master().set_grad(Tensor());
}

// Takes part in the steps of the other ranks, without gradients of this rank. Every rank runs the last step of this
// loop, because it learns by that step that all ranks have joined: then there was none.
void DistributedTraining::shadow() {
  joining->leave();
  while (true) {
    drop_gradients();  // the next step uses their memory
    prepare();
    run_step(plan(0), {}, [](const Batch&) { return Tensor(); });
    if (last.joined == group->size()) return;
    if (joining->options().shadow_step) joining->options().shadow_step();
  }
}

}  // namespace lockstep::parallel
