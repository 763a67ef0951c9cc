// One step of a ShardedDataParallel: forward and backward of the micro-batches, and the gradients of the pieces.
//
// All ranks run the same number of micro-batches as far as gathers are concerned: a rank without samples for one takes
// part in its gathers only.
#include <algorithm>
#include <exception>

#include "lockstep/parallel/sharded/sharded_state_internal.h"
#include "lockstep/tensor/check_internal.h"
#include "lockstep/tensor/ops_internal.h"

namespace lockstep::parallel {
namespace {

// The pieces as parameters, for AccumulatedGradients.
std::vector<nn::Parameter> parameters_of(const std::vector<TrainedPiece>& pieces) {
  std::vector<nn::Parameter> parameters;
  for (const TrainedPiece& piece : pieces) parameters.push_back(piece.parameter);
  return parameters;
}

// After an exception: drops the gradients that the failed step has left in the module's parameters, of which the user
// has no way to get rid.
class DropAfterError {
 public:
  explicit DropAfterError(const std::vector<nn::Parameter>& parameters) : parameters_(parameters) {}
  ~DropAfterError() {
    if (std::uncaught_exceptions() == before_) return;
    for (const nn::Parameter& parameter : parameters_) parameter.master().set_grad(Tensor());
  }
  DropAfterError(const DropAfterError&) = delete;
  DropAfterError& operator=(const DropAfterError&) = delete;

 private:
  const std::vector<nn::Parameter>& parameters_;
  int before_ = std::uncaught_exceptions();
};

}  // namespace

void ShardedDataParallel::State::check_usable() const {
  LOCKSTEP_CHECK(!gathers->is_running() && gathered_depth == 0, "ShardedDataParallel: backward inside {}",
                 gathered_depth > 0 ? "gathered" : "backward");
  LOCKSTEP_CHECK(nn::current_replica_view() == nullptr,
                 "ShardedDataParallel: cannot run inside a DataParallel replica");
}

// Gathers all units outside a step. Returns copies of what a change in `gathered` would change for good: of resident
// parameters this rank's shard, and all of those that are frozen.
std::vector<Tensor> ShardedDataParallel::State::gather_all() {
  upload();
  if (gathers->are_direct()) group->barrier();  // all ranks' optimizers have finished their steps
  std::vector<Tensor> kept;
  for (UnitParameters& unit : units) {
    unit.release();
    unit.mark_changed();
    unit.gather_apart(*group);
    for (const FlatParameters& flat : unit.flats())
      kept.push_back(is_resident() ? raw::clone(flat.layout.trained ? flat.shard : flat.whole) : Tensor());
    unit.note_version();
  }
  if (gathers->are_direct()) group->barrier();  // all ranks have read the shards
  return kept;
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

// With offload: copies the pieces that the optimizer has changed to the device.
void ShardedDataParallel::State::upload() {
  for (const TrainedFlat& flat : trained) {
    if (!flat.host.defined()) continue;
    raw::copy(flat.host, flat.shard);
    group->traffic().add(-1 - group->rank(), group->rank(), Phase::kOffload, bytes_of(flat.host));
  }
}

void ShardedDataParallel::State::run_micro_batches(const MicroBatchPlan& plan, const Batch& batch,
                                                   MicroBatchLoss loss_fn, std::vector<Tensor>& losses,
                                                   FunctionRef<void()> before_last) {
  struct End {
    UnitGathers& gathers;
    ~End() { gathers.end_step(); }
  };
  upload();
  gathers->begin_step();
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
void ShardedDataParallel::State::complete(std::size_t parameter, const autograd::Run& run) {
  LOCKSTEP_CHECK(gathers->is_running(),
                 "ShardedDataParallel: a backward outside a step reached parameter {}, whose gradient would not be "
                 "reduced; call run.backward(x, y, loss_fn)",
                 gradients->name(parameter));
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
  gathers->enter_backward(unit);
  if (reducing) gradients->enter(unit);
}

Tensor ShardedDataParallel::State::run_step(const MicroBatchPlan& plan, const Batch& batch, MicroBatchLoss loss_fn) {
  struct Reset {
    State& state;
    ~Reset() {
      state.reducing = false;
      state.accumulated = nullptr;
      state.backward_run = nullptr;
    }
  };
  const Reset reset{*this};
  const std::vector<nn::Parameter> of_pieces = parameters_of(pieces);
  AccumulatedGradients earlier(of_pieces), local(micro_batches.parameters());
  const DropAfterError drop(micro_batches.parameters());
  const double scale = plan.weighted() ? 1 : 1.0 / micro_batches_of_step();
  std::vector<Tensor> losses;
  group->traffic().begin_step();
  trace_plan();
  gradients->begin_step(scale, gathers->are_direct());
  accumulated = &local;
  accumulated_factor = plan.samples > 0 ? 1 / plan.scale().first : plan.micro_batches;
  run_micro_batches(plan, batch, loss_fn, losses, [&] { reducing = true; });
  if (losses.empty()) micro_batches.sets().begin(0, 1);
  reducing = true;
  for (std::size_t p = gradients->size(); p-- > 0;) complete(p);  // those that backward did not reach
  gradients->launch_rest();
  local.forget();
  const StepSummary own{.micro_batches = plan.running(),
                        .samples = plan.samples,
                        .loss = losses.empty() ? 0 : combine_losses(losses).item<double>(),
                        .stop = wants_stop ? 1 : 0};
  const Tensor loss = finish_step(plan, own, scale);
  earlier.add_back();
  return raw::to(loss, losses.empty() ? kFloat32 : losses[0].dtype());
}

// Waits for the sums, and gives the pieces their gradients. Returns the mean loss.
Tensor ShardedDataParallel::State::finish_step(const MicroBatchPlan& plan, const StepSummary& own, double scale) {
  own.write(summary);
  for (std::size_t p = 0; p < gradients->size(); ++p)
    set_element(summary, StepSummary::kElements + static_cast<std::int64_t>(p), gradients->is_used(p) ? 1 : 0);
  {
    const PhaseGuard phase(*reductions, Phase::kGradients);
    reductions->all_reduce_scaled(summary, scale)->wait();
  }
  gradients->wait();
  last = StepSummary::read(summary, scale);
  const StepScale mean = plan.weighted() ? StepScale(last.samples)
                                         : StepScale(micro_batches_of_step(), static_cast<int>(last.micro_batches));
  take_gradients(mean, scale);
  if (micro_batches.has_buffers()) {
    const PhaseGuard phase(*group, Phase::kBuffers);
    for (const nn::Buffer& buffer : module.buffers()) group->broadcast(buffer.master(), 0)->wait();
  }
  ++steps;
  const Tensor loss = raw::full(Shape(), last.loss, {.dtype = summary.dtype()});
  scale_gradient(loss, plan.weighted() ? mean.first : mean.second);
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
    if (trained[f].host.defined()) {
      group->traffic().add(group->rank(), -1 - group->rank(), Phase::kOffload, bytes_of(sum));
      sum = raw::to(sum, Device());
    }
    sums.push_back(sum);
  }
  for (std::size_t p = 0; p < pieces.size(); ++p) {
    const Tensor& piece = pieces[p].parameter.master();
    set_rounded(piece, is_used(p) ? elements_of(sums[pieces[p].flat], pieces[p].at, piece.numel()) : Tensor());
  }
}

// A step inside no_sync: the gradients stay in the module's parameters. Those of the pieces are set aside: their memory
// may be that of the buffers. At the end no rank may step its shards before all ranks have read them.
Tensor ShardedDataParallel::State::run_local(const MicroBatchPlan& plan, const Batch& batch, MicroBatchLoss loss_fn) {
  std::vector<Tensor> losses;
  const std::vector<nn::Parameter> of_pieces = parameters_of(pieces);
  const AccumulatedGradients earlier(of_pieces);
  AccumulatedGradients local(micro_batches.parameters());
  const DropAfterError drop(micro_batches.parameters());
  run_micro_batches(plan, batch, loss_fn, losses, [] {});
  if (!losses.empty()) {
    micro_batches.take_gradients(plan.scale());
    local.add_back();
  }
  if (gathers->are_direct()) group->barrier();
  return losses.empty() ? raw::full(Shape(), 0, {.dtype = kFloat32}) : combine_losses(losses, plan.scale());
}

}  // namespace lockstep::parallel
