// Ranks with different numbers of batches: joined ranks, which have no more data, take part in the others' steps with
// gradients that count as zero, and step their own part of the model.
#include "lockstep/base/check_internal.h"
#include "lockstep/parallel/sharded/sharded_state_internal.h"
#include "lockstep/parallel/step/step_failure_internal.h"

namespace lockstep::parallel {

void ShardedDataParallel::join(FunctionRef<void()> body, const JoinOptions& options) {
  if (!options.enable) return body();
  State& state = *state_;
  state.check_usable();
  LOCKSTEP_CHECK(!state.joining, "ShardedDataParallel: join inside join of the same model");
  LOCKSTEP_CHECK(state.local_depth == 0, "ShardedDataParallel: join inside no_sync, where no step is synchronised");
  LOCKSTEP_CHECK(options.shadow_step,
                 "ShardedDataParallel: join without .shadow_step, but a rank without data has a part of the model to "
                 "step\nPass {{.shadow_step = [&] {{ optimizer.step(); }}}}");
  state.joining.emplace("ShardedDataParallel", options, *state.group);
  struct Leave {
    State& state;
    ~Leave() { state.joining.reset(); }
  };
  const Leave leave{state};
  run_or_end(state, [&] {
    body();
    state.shadow();  // which calls .shadow_step
  });
}

// Every rank runs the last step of this loop, because it learns by that step that all ranks have joined.
void ShardedDataParallel::State::shadow() {
  check_usable();
  joining->leave();
  while (true) {
    for (const ShardedParameter& piece : all) piece.parameter.master().set_grad(Tensor());
    drop_gradients();
    const MicroBatchPlan plan{.op = "ShardedDataParallel",
                              .samples = 0,
                              .micro_batches = options.micro_batches_per_rank,
                              .weighting = options.weighting};
    run_step(plan, {}, [](const Batch&) { return Tensor(); });
    if (last.joined == group->size()) return;
    joining->options().shadow_step();
  }
}

}  // namespace lockstep::parallel
