#include "lockstep/parallel/replicated/gradient_accumulation.h"

#include "lockstep/base/check_internal.h"
#include "lockstep/nn/utilities.h"
#include "lockstep/parallel/step/accumulated_gradients_internal.h"
#include "lockstep/parallel/step/micro_batch_loop_internal.h"
#include "lockstep/tensor/random/random.h"

namespace lockstep::parallel {

struct GradientAccumulation::State {
  State(nn::Module& module, const GradientAccumulationOptions& options)
      : module(module), options(options), micro_batches(module) {}
  nn::Module& module;
  GradientAccumulationOptions options;
  MicroBatchesInTurn micro_batches;
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
nn::Module& GradientAccumulation::module() const { return state_->module; }
double GradientAccumulation::clip_grad_norm_(double max_norm) { return nn::clip_grad_norm_(parameters(), max_norm); }

Tensor GradientAccumulation::run(const Batch& batch, MicroBatchLoss loss_fn) {
  State& state = *state_;
  const MicroBatchPlan plan{.op = "GradientAccumulation",
                            .samples = rows_of("GradientAccumulation", batch),
                            .micro_batches = state.options.micro_batches,
                            .weighting = state.options.weighting};
  const StepScale scale = plan.scale();
  state.micro_batches.update();
  AccumulatedGradients accumulated(state.micro_batches.parameters());
  std::vector<Tensor> losses;
  state.micro_batches.run(plan, 0, batch, loss_fn, losses, [](bool) {});
  state.micro_batches.take_gradients(scale);
  accumulated.add_back();
  return combine_losses(losses, scale);
}

}  // namespace lockstep::parallel
