// Ranks with different numbers of batches: joined ranks, which have no more data, take part in the others' steps.
//
// The step's summary says how many ranks have joined, without a message of its own. A joined rank launches
// the next step's first bucket like all ranks; if the summary says that all ranks have joined, there is no next step.
#include <algorithm>

#include "lockstep/base/check_internal.h"
#include "lockstep/parallel/replicated/distributed_state_internal.h"
#include "lockstep/parallel/step/step_failure_internal.h"

namespace lockstep::parallel {
void DistributedDataParallel::join(FunctionRef<void()> body, const JoinOptions& options) {
  if (!options.enable) return body();
  State& state = *state_;
  LOCKSTEP_CHECK(!state.joining, "DistributedDataParallel: join inside join of the same model");
  LOCKSTEP_CHECK(state.local_depth == 0, "DistributedDataParallel: join inside no_sync, where no step is synchronised");
  LOCKSTEP_CHECK(!LaunchQueue::of(*state.group).is_shared(),
                 "DistributedDataParallel: join: another model shares the group, and a joined rank can take part in "
                 "the steps of one model only; construct each model on its own group");
  state.install();
  state.joining.emplace("DistributedDataParallel", options, *state.group);
  struct Leave {
    State& state;
    ~Leave() { state.joining.reset(); }
  };
  const Leave leave{state};
  run_or_end(state, [&] {
    body();
    state.shadow();  // which calls .shadow_step
  });
  state.end_join();
}

void DistributedDataParallel::State::shadow() {
  joining->leave();
  const auto drop_gradients = [&] {
    for (const nn::Parameter& parameter : micro_batches.parameters()) parameter.master().set_grad(Tensor());
  };
  drop_gradients();  // the next step uses their buckets
  while (joined_step()) {
    if (joining->options().shadow_step) joining->options().shadow_step();
    drop_gradients();
  }
}

// Takes part in a step of the other ranks, without gradients of this rank. Returns false if all ranks have joined:
// then there was no step.
bool DistributedDataParallel::State::joined_step() {
  install();
  begin_traffic(nullptr);
  StepInputs of_step = inputs({.micro_batches = 0, .joined = 1});
  of_step.micro_batches_per_rank = options.micro_batches_per_rank;
  DistributedStep joined(*buckets, of_step, step);
  if (!joined.begin_joined()) return false;
  finish_step();
  return true;
}

// Joined ranks have not taken the optimizer's steps, so they get the parameters of a rank that has.
void DistributedDataParallel::State::end_join() {
  const std::vector<std::int64_t> steps = joining->steps_of_all();
  const auto [fewest, most] = std::ranges::minmax_element(steps);
  if (*fewest < *most) share_state(static_cast<int>(std::ranges::max_element(steps) - steps.begin()));
}

}  // namespace lockstep::parallel
