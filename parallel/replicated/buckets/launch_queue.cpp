#include "lockstep/parallel/replicated/buckets/launch_queue_internal.h"

#include <algorithm>

namespace lockstep::parallel {

LaunchQueue& LaunchQueue::of(ProcessGroup& group) { return group.attachment<LaunchQueue>(); }

bool LaunchQueue::has_model_on(const ProcessGroup& group) const {
  return std::ranges::any_of(models_, [&](const ReducedModel* each) { return &each->own_group() == &group; });
}

void LaunchQueue::launch_rest(const autograd::Run& run) {
  for (ReducedModel* const each : models_) {
    if (each->takes_part(run)) each->launch_rest();
  }
}

void LaunchQueue::finish_steps(const autograd::Run& run) {
  for (ReducedModel* const each : models_) {
    if (each->takes_part(run)) each->finish_step();
  }
}

}  // namespace lockstep::parallel
