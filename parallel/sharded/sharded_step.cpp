// One step of a ShardedDataParallel: what differs from other strategies (step/distributed_training_internal.h).
//
// All ranks run the same number of micro-batches as far as gathers are concerned: a rank without samples for one takes
// part in its gathers only.
#include <algorithm>

#include "lockstep/base/check_internal.h"
#include "lockstep/parallel/sharded/sharded_state_internal.h"

namespace lockstep::parallel {

void ShardedDataParallel::State::prepare() {
  end_failed_call();
  LOCKSTEP_CHECK(gathers->is_idle(), "ShardedDataParallel: a step inside {}",
                 gathers->has_all() ? "gathered"
                                    : "another step, or before the backward of operator()'s result; a loss function "
                                      "calls the module: model(x)");
  LOCKSTEP_CHECK(micro_batches.is_current(),
                 "ShardedDataParallel: parameters were frozen or unfrozen after the construction; freeze before it");
  LOCKSTEP_CHECK(!joining || std::ranges::none_of(of_pieces, [](const auto& p) { return p.master().grad().defined(); }),
                 "ShardedDataParallel: gradients accumulate over steps inside join, but ranks that have joined do not "
                 "accumulate; call optimizer.zero_grad() before each step");
}

void ShardedDataParallel::State::begin_step() {
  check_gathered();
  trace_plan();
}

// A failed step may have left reductions, whose memory is that of this step's gradients.
void ShardedDataParallel::State::begin_micro_batches() {
  gradients->wait_for_units();
  upload_trained();
  gathers->begin_step();
}

void ShardedDataParallel::State::reach(std::size_t parameter, autograd::Run& run) {
  if (!gathers->is_running()) gradients->leaf(parameter).set_grad(Tensor());  // the next step would take it for its own
  LOCKSTEP_CHECK(gathers->is_running(),
                 "ShardedDataParallel: a backward outside a step reached parameter {}, whose gradient would not be "
                 "reduced and is dropped; call run.backward(x, y, loss_fn), or run(x) in place of model(x)",
                 gradients->name(parameter));
  end_call_with(run);
}

void ShardedDataParallel::State::enter_backward(std::size_t unit) {
  begin_backward_of_call();  // the unit's output may be the model's
  gathers->enter_backward(unit);
  if (step) gradients->enter(unit);
}

void ShardedDataParallel::State::need(const Storage& storage) {
  const auto unit = std::ranges::find_if(units, [&](const UnitParameters& each) { return each.owns(storage); });
  const auto u = static_cast<std::size_t>(unit - units.begin());
  if (gathers->is_running()) return gathers->need(u);
  throw InvalidArgument(
      fmt::format("ShardedDataParallel: the parameters of {} are distributed over the ranks\n"
                  "Train with run.backward(x, y, loss_fn) or run(x), read or evaluate inside run.gathered([&] {{ ... "
                  "}}), save and load with "
                  "parallel::save_checkpoint(path, {{.model = &run}}) and load_checkpoint",
                  units[u].name()));
}

// No rank may step its shards before all ranks have read them.
void ShardedDataParallel::State::end_local_step() {
  if (gathers->are_direct()) group->barrier();
}

// The user has no way to get rid of gradients of the module's own parameters.
void ShardedDataParallel::State::drop_partial_gradients() { DistributedTraining::drop_gradients(); }

void ShardedDataParallel::State::drop_gradients() {
  for (const ShardedParameter& piece : all) piece.parameter.master().set_grad(Tensor());
  DistributedTraining::drop_gradients();
}

void ShardedDataParallel::State::check_join(const JoinOptions& join_options) const {
  LOCKSTEP_CHECK(join_options.shadow_step,
                 "ShardedDataParallel: join without .shadow_step, but a rank without data has a part of the model to "
                 "step\nPass {{.shadow_step = [&] {{ optimizer.step(); }}}}");
}

}  // namespace lockstep::parallel
