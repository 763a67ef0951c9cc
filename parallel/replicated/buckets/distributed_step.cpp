#include "lockstep/parallel/replicated/buckets/distributed_step_internal.h"

#include "lockstep/tensor/ops/ops_internal.h"

namespace lockstep::parallel {

DistributedStep::DistributedStep(GradientBuckets& buckets, StepInputs inputs, DistributedStep*& current)
    : buckets_(buckets), inputs_(inputs), current_(current) {
  current_ = this;
  if (inputs_.order) inputs_.order->clear();  // a failed step may have recorded some
  buckets_.begin_step();
}

void DistributedStep::complete(std::size_t parameter, bool shared) {
  buckets_.advance();  // first: this gradient may be the last one
  mark_ready(parameter);
  const Bucket* next = buckets_.next();
  for (; next && next->pending == 0 && (!shared || buckets_.fits_in_flight(*next)); next = buckets_.next())
    launch_next();
}

void DistributedStep::mark_ready(std::size_t parameter) {
  if (buckets_.is_ready(parameter)) return;
  if (inputs_.order) inputs_.order->push_back(parameter);
  Tensor gradient = inputs_.sets ? inputs_.sets->finish(parameter) : buckets_.leaf(parameter).grad();
  if (inputs_.accumulated) gradient = inputs_.accumulated->join(parameter, gradient, inputs_.accumulated_factor);
  buckets_.mark_ready(parameter, gradient);
}

// In the order of the buckets, which is that of the parameters from the last to the first.
void DistributedStep::mark_all_ready() {
  for (std::size_t p = buckets_.size(); p-- > 0;) mark_ready(p);
}

void DistributedStep::launch_next() {
  buckets_.launch_metadata(inputs_.own, scale());
  buckets_.launch_gradients();
}

void DistributedStep::launch_rest() {
  buckets_.advance();
  mark_all_ready();
  while (buckets_.next()) launch_next();
}

bool DistributedStep::begin_joined() {
  mark_all_ready();
  buckets_.launch_metadata(inputs_.own, scale());
  buckets_.wait_for_metadata();
  if (buckets_.total(scale()).joined == inputs_.ranks) return false;
  buckets_.launch_gradients();
  return true;
}

StepSummary DistributedStep::finish() {
  launch_rest();  // nothing is left after a backward that the user called
  buckets_.wait();
  const StepSummary total = buckets_.total(scale());
  const int idle = inputs_.counts_joined ? total.joined * inputs_.micro_batches_per_rank : 0;
  buckets_.finish_step(inputs_.weighted ? StepScale(total.samples)
                                        : StepScale(micro_batches(), static_cast<int>(total.micro_batches) + idle),
                       scale());
  take_loss(total);
  current_ = nullptr;
  return total;
}

// The mean is over the micro-batches that ran, even if joined ranks count in the mean of the gradients.
void DistributedStep::take_loss(const StepSummary& total) {
  mean_loss_ = raw::full(Shape(), total.loss, {.dtype = buckets_.dtype()});
  if (inputs_.weighted)
    scale_gradient(mean_loss_, StepScale(total.samples).first);
  else
    scale_gradient(mean_loss_, StepScale(micro_batches(), static_cast<int>(total.micro_batches)).second);
}

}  // namespace lockstep::parallel
