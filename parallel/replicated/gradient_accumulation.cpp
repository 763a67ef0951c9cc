#include "lockstep/parallel/replicated/gradient_accumulation.h"

#include "lockstep/parallel/replicated/gradient_sets_internal.h"
#include "lockstep/parallel/replicated/micro_batch_buffers_internal.h"
#include "lockstep/parallel/replicated/micro_batch_internal.h"
#include "lockstep/parallel/replicated/standing_gradients_internal.h"
#include "lockstep/tensor/check_internal.h"
#include "lockstep/tensor/ops_internal.h"
#include "lockstep/tensor/random.h"

namespace lockstep::parallel {

struct GradientAccumulation::State {
  State(nn::Module& module, const GradientAccumulationOptions& options)
      : module(module), options(options), parameters(module), sets(parameters.list()), buffers(module) {}
  nn::Module& module;
  GradientAccumulationOptions options;
  TrainedParameters parameters;
  GradientSets sets;
  MicroBatchBuffers buffers;
};

GradientAccumulation::GradientAccumulation(nn::Module& module, const GradientAccumulationOptions& options) {
  LOCKSTEP_CHECK(options.micro_batches >= 1 && options.micro_batches <= random::kMaxMicroBatches,
                 "GradientAccumulation: {} micro-batches, expected 1 to {}", options.micro_batches,
                 random::kMaxMicroBatches);
  state_ = std::make_unique<State>(module, options);
}
GradientAccumulation::~GradientAccumulation() = default;

Tensor GradientAccumulation::operator()(const Tensor& x) const { return state_->module(x); }
std::vector<nn::Parameter> GradientAccumulation::parameters() const { return state_->module.parameters(); }

Tensor GradientAccumulation::run(const Batch& batch, MicroBatchLoss loss_fn) {
  State& state = *state_;
  const std::int64_t rows = rows_of("GradientAccumulation", batch);
  const int micro_batches = state.options.micro_batches;
  const int running = static_cast<int>(std::min<std::int64_t>(rows, micro_batches));
  LOCKSTEP_CHECK(running > 0, "GradientAccumulation: the batch has no rows");
  const bool weighted = state.options.weighting == Weighting::kSamples;

  if (state.parameters.changed()) state.sets = GradientSets(state.parameters.list());
  const std::vector<nn::Parameter>& parameters = state.parameters.list();
  StandingGradients standing(parameters);
  state.buffers.begin_step(running > 1);
  std::vector<Tensor> losses;
  for (int s = 0; s < running; ++s) {
    const RowRange range = micro_batch_rows(rows, s, micro_batches);
    const random::MicroBatchGuard micro_batch(s);
    nn::ReplicaView view;
    if (s > 0) state.buffers.enter(view);
    const nn::ReplicaViewGuard guard(s > 0 && !state.buffers.empty() ? &view : nn::current_replica_view());
    state.sets.begin(s, running);
    const Tensor loss = loss_fn(narrow_rows(batch, range));
    const std::int64_t weight = weighted ? range.count : 1;
    losses.push_back(weighted_loss("GradientAccumulation", loss, weight));
    weighted_backward(loss, weight);
    state.sets.end(s, running);
  }
  const StepScale scale = weighted ? StepScale(rows) : StepScale(micro_batches, running);
  for (std::size_t p = 0; p < parameters.size(); ++p) {
    const Tensor sum = state.sets.finish(p);
    scale_gradient(sum, scale.first);
    scale_gradient(sum, scale.second);
    set_rounded(parameters[p].master(), sum);
  }
  standing.add_back();
  return combine_losses(losses, scale);
}

}  // namespace lockstep::parallel
