// One step of a ShardedDataParallel: forward and backward of the micro-batches, and the gradients of the pieces.
//
// All ranks run the same number of micro-batches as far as gathers are concerned: a rank without samples for one takes
// part in its gathers only.
#include <algorithm>
#include <exception>

#include "lockstep/base/check_internal.h"
#include "lockstep/parallel/sharded/sharded_state_internal.h"
#include "lockstep/parallel/step/model_check_internal.h"
#include "lockstep/tensor/ops/ops_internal.h"

namespace lockstep::parallel {
namespace {

// After an exception: calls `drop`.
template <class Drop>
class AfterError {
 public:
  explicit AfterError(Drop drop) : drop_(std::move(drop)) {}
  ~AfterError() {
    if (std::uncaught_exceptions() > before_) drop_();
  }
  AfterError(const AfterError&) = delete;
  AfterError& operator=(const AfterError&) = delete;

 private:
  Drop drop_;
  int before_ = std::uncaught_exceptions();
};

// Ranks that have joined begin every step without gradients.
void check_no_gradients(const std::vector<nn::Parameter>& pieces) {
  LOCKSTEP_CHECK(std::ranges::none_of(pieces, [](const auto& piece) { return piece.master().grad().defined(); }),
                 "ShardedDataParallel: gradients accumulate over steps inside join, but ranks that have joined do not "
                 "accumulate; call optimizer.zero_grad() before each step");
}

}  // namespace

// For AccumulatedGradients.
std::vector<nn::Parameter> ShardedDataParallel::State::parameters_of_pieces() const {
  std::vector<nn::Parameter> parameters;
  for (const TrainedPiece& piece : pieces) parameters.push_back(piece.parameter);
  return parameters;
}

// Drops the gradients that a failed step has left in the module's parameters, of which the user has no way to get rid.
void ShardedDataParallel::State::drop_gradients() {
  for (const nn::Parameter& parameter : micro_batches.parameters()) parameter.master().set_grad(Tensor());
}

void ShardedDataParallel::State::check_usable() {
  end_failed_call();
  LOCKSTEP_CHECK(!gathers->is_running() && gathered_depth == 0, "ShardedDataParallel: a step inside {}",
                 gathered_depth > 0 ? "gathered"
                                    : "another step, or before the backward of operator()'s result; a loss function "
                                      "calls the module: model(x)");
  LOCKSTEP_CHECK(nn::current_replica_view() == nullptr,
                 "ShardedDataParallel: cannot run inside a DataParallel replica");
  LOCKSTEP_CHECK(micro_batches.is_current(),
                 "ShardedDataParallel: parameters were frozen or unfrozen after the construction; freeze before it");
}

// Gathers all units outside a step.
void ShardedDataParallel::State::gather_all() {
  upload_trained();
  if (gathers->are_direct()) group->barrier();  // all ranks' optimizers have finished their steps
  for (UnitParameters& unit : units) {
    unit.mark_changed();
    unit.gather_apart(*group);
    unit.note_version();
  }
  if (gathers->are_direct()) group->barrier();  // all ranks have read the shards
}

// Copies of what a change in `gathered` would change for good: of resident parameters this rank's shard, and all of
// those that are frozen.
std::vector<Tensor> ShardedDataParallel::State::copy_values() const {
  std::vector<Tensor> kept;
  for (const UnitParameters& unit : units) {
    for (const FlatParameters& flat : unit.flats())
      kept.push_back(is_resident() ? raw::clone(flat.layout.trained ? flat.shard : flat.whole) : Tensor());
  }
  return kept;
}

// With check_every: compares the parameters that the ranks gather.
void ShardedDataParallel::State::check_gathered() {
  if (options.check_every == 0 || steps % options.check_every != 0 || std::exchange(checked, steps) == steps) return;
  struct Hide {
    std::vector<UnitParameters>& units;
    ~Hide() {
      for (UnitParameters& unit : units) unit.hide();
    }
  };
  const Hide hide{units};
  gather_all();
  check_same_values("ShardedDataParallel", module, *group, /*with_buffers=*/false);
}

// Undoes changes of parameters in `gathered`, which other ranks do not see. Returns the unit that was changed, or null.
const UnitParameters* ShardedDataParallel::State::undo_changes(const std::vector<Tensor>& kept) {
  std::size_t at = 0;
  const UnitParameters* changed = nullptr;
  for (UnitParameters& unit : units) {
    if (unit.has_new_version()) changed = &unit;
    for (const FlatParameters& flat : unit.flats()) {
      if (unit.has_new_version() && is_resident()) raw::copy(kept[at], flat.layout.trained ? flat.shard : flat.whole);
      ++at;
    }
  }
  return changed;
}

// Copies the values that the optimizer has changed, or a checkpoint, to the shard, rounded to its dtype.
void ShardedDataParallel::State::upload(const FlatParameters& flat) {
  if (flat.master.ref() == flat.shard.ref()) return;
  const bool is_offloaded = flat.master.device() != flat.shard.device();
  raw::copy(is_offloaded ? raw::to(flat.master, flat.shard.dtype()) : flat.master, flat.shard);
  if (is_offloaded) group->traffic().add(-1 - group->rank(), group->rank(), Phase::kOffload, bytes_of(flat.shard));
}

// Gathers of a failed step, which other ranks may have launched as well, still read the shards: waits for them.
void ShardedDataParallel::State::upload_trained() {
  for (UnitParameters& unit : units) unit.release();
  for (const FlatParameters* flat : trained) upload(*flat);
}

void ShardedDataParallel::State::begin_gathers() {
  upload_trained();
  gathers->begin_step();
}

void ShardedDataParallel::State::run_micro_batches(const MicroBatchPlan& plan, const Batch& batch,
                                                   MicroBatchLoss loss_fn, std::vector<Tensor>& losses,
                                                   FunctionRef<void()> before_last) {
  struct End {
    UnitGathers& gathers;
    ~End() { gathers.end_step(); }
  };
  begin_gathers();
  const End end{*gathers};
  if (plan.running() > 0) {
    bool began = false;
    micro_batches.run(
        plan, group->rank() * plan.micro_batches, batch,
        [&](const Batch& samples) {
          if (std::exchange(began, true)) gathers->end_backward();
          gathers->begin_forward();
          return loss_fn(samples);
        },
        losses,
        [&](bool is_last) {
          gathers->end_forward();
          if (is_last) before_last();
          gathers->begin_backward();
        });
    gathers->end_backward();
  }
  for (int rest = plan.micro_batches - plan.running(); rest > 0; --rest) {
    gathers->begin_forward();
    gathers->end_forward();
    gathers->begin_backward();
    gathers->end_backward();
  }
}

// The leaf hook of a parameter.
void ShardedDataParallel::State::complete(std::size_t parameter, autograd::Run& run) {
  if (!gathers->is_running()) gradients->leaf(parameter).set_grad(Tensor());  // the next step would take it for its own
  LOCKSTEP_CHECK(gathers->is_running(),
                 "ShardedDataParallel: a backward outside a step reached parameter {}, whose gradient would not be "
                 "reduced and is dropped; call run.backward(x, y, loss_fn), or run(x) in place of model(x)",
                 gradients->name(parameter));
  enter_call(run);
  if (!reducing) return;
  if (!backward_run) backward_run = &run;
  LOCKSTEP_CHECK(backward_run == &run,
                 "ShardedDataParallel: a backward that runs inside another one, in a hook or a Function, reached "
                 "parameter {}; call autograd::grad there",
                 gradients->name(parameter));
  complete(parameter);
}

// The gradient of a parameter is complete. In the last micro-batch it joins the reduction.
void ShardedDataParallel::State::complete(std::size_t parameter) {
  if (!reducing || gradients->is_ready(parameter)) return;
  Tensor gradient = micro_batches.sets().finish(parameter);
  if (accumulated) gradient = accumulated->join(parameter, gradient, accumulated_factor);
  gradients->mark_ready(parameter, gradient);
}

void ShardedDataParallel::State::enter_backward(std::size_t unit) {
  begin_backward_of_call();  // the unit's output may be the model's
  gathers->enter_backward(unit);
  if (reducing) gradients->enter(unit);
}

// `local`: gradients of steps in no_sync.
void ShardedDataParallel::State::begin_step(const MicroBatchPlan& plan, const AccumulatedGradients& local) {
  check_gathered();
  group->traffic().begin_step();
  trace_plan();
  gradients->begin_step(scale_of(plan), gathers->are_direct());
  accumulated = &local;
  accumulated_factor = plan.samples > 0 ? 1 / plan.scale().first : plan.micro_batches;
}

void ShardedDataParallel::State::reset_step() {
  reducing = false;
  accumulated = nullptr;
  backward_run = nullptr;
}

Tensor ShardedDataParallel::State::run_step(const MicroBatchPlan& plan, const Batch& batch, MicroBatchLoss loss_fn) {
  struct Reset {
    State& state;
    ~Reset() { state.reset_step(); }
  };
  const Reset reset{*this};
  const std::vector<nn::Parameter> of_pieces = parameters_of_pieces();
  if (joining) check_no_gradients(of_pieces);
  AccumulatedGradients earlier(of_pieces), local(micro_batches.parameters());
  const AfterError drop([this] { drop_gradients(); });
  std::vector<Tensor> losses;
  begin_step(plan, local);
  run_micro_batches(plan, batch, loss_fn, losses, [&] { reducing = true; });
  if (losses.empty()) micro_batches.sets().begin(0, 1);
  const Tensor loss = finish_step(plan, losses, local);
  earlier.add_back();
  return losses.empty() ? loss : raw::to(loss, losses[0].dtype());
}

// After the backward of the last micro-batch: reduces the gradients that it did not reach, and gives the pieces their
// gradients. Returns the mean loss.
Tensor ShardedDataParallel::State::finish_step(const MicroBatchPlan& plan, const std::vector<Tensor>& losses,
                                               AccumulatedGradients& local) {
  reducing = true;
  for (std::size_t p = gradients->size(); p-- > 0;) complete(p);
  gradients->launch_rest();
  local.forget();
  const StepSummary own{.micro_batches = plan.running(),
                        .samples = plan.samples,
                        .loss = losses.empty() ? 0 : combine_losses(losses).item<double>(),
                        .stop = wants_stop ? 1 : 0,
                        .joined = joining && joining->is_out() ? 1 : 0};
  return wait_for_sums(plan, own, scale_of(plan));
}

// Returns the mean loss.
Tensor ShardedDataParallel::State::wait_for_sums(const MicroBatchPlan& plan, const StepSummary& own, double scale) {
  own.write(summary);
  for (std::size_t p = 0; p < gradients->size(); ++p)
    set_element(summary, StepSummary::kElements + static_cast<std::int64_t>(p), gradients->is_used(p) ? 1 : 0);
  try {
    reductions->all_reduce_scaled(summary, scale, {.phase = Phase::kGradients})->wait();
    gradients->wait();
  } catch (Error& error) {
    error.add_context(fmt::format("ShardedDataParallel: gradients of step {}", steps + 1));
    throw;
  }
  last = StepSummary::read(summary, scale);
  const Tensor loss = raw::full(Shape(), last.loss, {.dtype = summary.dtype()});
  if (last.joined == group->size()) return loss;
  const auto ran = static_cast<int>(last.micro_batches), of_step = micro_batches_of_step();
  const bool counts_joined = joining && joining->options().divide_by_initial_world_size;
  const int idle = counts_joined ? last.joined * options.micro_batches_per_rank : 0;
  take_gradients(plan.weighted() ? StepScale(last.samples) : StepScale(of_step, ran + idle), scale);
  if (joining) joining->after_step(last.joined);
  if (micro_batches.has_buffers()) {
    const int root = joining ? joining->buffers_of() : 0;
    for (const nn::Buffer& buffer : module.buffers())
      group->broadcast(buffer.master(), root, {.phase = Phase::kBuffers})->wait();
  }
  ++steps;
  scale_gradient(loss, plan.weighted() ? StepScale(last.samples).first : StepScale(of_step, ran).second);
  return loss;
}

bool ShardedDataParallel::State::is_used(std::size_t parameter) const {
  return get_element(summary, StepSummary::kElements + static_cast<std::int64_t>(parameter)) != 0;
}

// `launched`: the factor that the reductions have applied.
void ShardedDataParallel::State::take_gradients(const StepScale& scale, double launched) {
  std::vector<Tensor> sums;
  for (std::size_t f = 0; f < trained.size(); ++f) {
    Tensor sum = gradients->flats()[f].shard;
    scale_gradient(sum, scale.first / launched);
    scale_gradient(sum, scale.second);
    if (is_offloaded()) {
      group->traffic().add(group->rank(), -1 - group->rank(), Phase::kOffload, bytes_of(sum));
      sum = raw::to(sum, Device());
    }
    sums.push_back(sum);
  }
  for (std::size_t p = 0; p < pieces.size(); ++p) {
    const Tensor& piece = pieces[p].parameter.master();
    used[p] = gradients->is_used(p);
    set_rounded(piece, is_used(p) ? elements_of(sums[pieces[p].flat], pieces[p].at, piece.numel()) : Tensor());
  }
}

void ShardedDataParallel::State::finish_local(const MicroBatchPlan& plan, AccumulatedGradients& local) {
  if (plan.running() > 0) {
    micro_batches.take_gradients(plan.scale());
    local.add_back();
  }
  if (gathers->are_direct()) group->barrier();
}

// A step inside no_sync: the gradients stay in the module's parameters. Those of the pieces are set aside: their memory
// may be that of the buffers, into which a failed step's reductions may still write. At the end no rank may step its
// shards before all ranks have read them.
Tensor ShardedDataParallel::State::run_local(const MicroBatchPlan& plan, const Batch& batch, MicroBatchLoss loss_fn) {
  std::vector<Tensor> losses;
  const std::vector<nn::Parameter> of_pieces = parameters_of_pieces();
  gradients->wait();
  const AccumulatedGradients earlier(of_pieces);
  AccumulatedGradients local(micro_batches.parameters());
  const AfterError drop([this] { drop_gradients(); });
  run_micro_batches(plan, batch, loss_fn, losses, [] {});
  finish_local(plan, local);
  return losses.empty() ? raw::full(Shape(), 0, {.dtype = kFloat32}) : combine_losses(losses, plan.scale());
}

}  // namespace lockstep::parallel
