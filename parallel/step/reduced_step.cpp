#include "lockstep/parallel/step/reduced_step_internal.h"

#include "lockstep/tensor/ops/ops_internal.h"

namespace lockstep::parallel {

StepScale StepInputs::gradient_scale(const StepSummary& total) const {
  if (weighted) return StepScale(total.samples);
  const int idle = counts_joined ? total.joined * micro_batches_per_rank : 0;
  return {micro_batches(), static_cast<int>(total.micro_batches) + idle};
}

Tensor StepInputs::mean_loss(const StepSummary& total, DType dtype) const {
  const Tensor loss = raw::full(Shape(), total.loss, {.dtype = dtype});
  if (weighted)
    scale_gradient(loss, StepScale(total.samples).first);
  else
    scale_gradient(loss, StepScale(micro_batches(), static_cast<int>(total.micro_batches)).second);
  return loss;
}

ReducedStep::ReducedStep(GradientReducer& reducer, const StepInputs& inputs, ReducedStep*& current)
    : reducer_(reducer), inputs_(inputs), current_(current), backward_(inputs.run) {
  current_ = this;
  reducer_.begin_step(inputs_.own, inputs_.scale());
}

bool ReducedStep::takes(const autograd::Run& run) {
  if (!backward_) backward_ = &run;
  return backward_ == &run;
}

void ReducedStep::complete(std::size_t parameter) {
  if (reducer_.is_ready(parameter)) return;
  Tensor gradient = inputs_.sets ? inputs_.sets->finish(parameter) : reducer_.leaf(parameter).grad();
  if (inputs_.accumulated) gradient = inputs_.accumulated->join(parameter, gradient, inputs_.accumulated_factor);
  reducer_.mark_ready(parameter, gradient);
}

// From the last parameter to the first, about the order of the reductions.
void ReducedStep::launch_rest() {
  for (std::size_t p = reducer_.size(); p-- > 0;) complete(p);
  reducer_.launch_rest();
}

StepSummary ReducedStep::finish() {
  launch_rest();  // nothing is left after a backward that the user called
  const StepSummary total = reducer_.wait();
  if (total.joined < inputs_.ranks) {
    reducer_.fill(inputs_.gradient_scale(total));
    mean_loss_ = inputs_.mean_loss(total, reducer_.dtype());
  }
  current_ = nullptr;
  return total;
}

}  // namespace lockstep::parallel
