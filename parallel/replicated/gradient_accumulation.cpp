#include "lockstep/parallel/replicated/gradient_accumulation.h"

#include "lockstep/parallel/step/local_training_internal.h"
#include "lockstep/parallel/step/recorder.h"

namespace lockstep::parallel {

struct GradientAccumulation::State : LocalTraining {
  using LocalTraining::LocalTraining;
};

GradientAccumulation::GradientAccumulation(nn::Module& module, const GradientAccumulationOptions& options)
    : state_(std::make_unique<State>("GradientAccumulation", module, options.micro_batches, options.weighting)) {
  recorder_ = Recorder::from_environment(*this);
}
GradientAccumulation::~GradientAccumulation() = default;

Tensor GradientAccumulation::operator()(const Tensor& x) const {
  return state_->forward([&] { return state_->module()(x); });
}
Tensor GradientAccumulation::operator()(const std::vector<Tensor>& inputs) const {
  return state_->forward([&] { return state_->module()(inputs); });
}
nn::Module& GradientAccumulation::module() const { return state_->module(); }
const TrafficStats& GradientAccumulation::traffic() { return state_->traffic(); }
double GradientAccumulation::clip_grad_norm_(double max_norm) { return state_->clip_grad_norm_(max_norm); }
NoSync GradientAccumulation::no_sync() { return state_->no_sync(); }
StepWatchers& GradientAccumulation::watchers() { return state_->watchers(); }
void GradientAccumulation::request_stop() { state_->request_stop(); }
bool GradientAccumulation::stop_requested() const { return state_->is_stopped(); }
TrainingPlan GradientAccumulation::plan() const { return state_->plan(); }

Tensor GradientAccumulation::run(const Batch& batch, MicroBatchLoss loss_fn) { return state_->run(batch, loss_fn); }
Tensor GradientAccumulation::run_evaluation(const Batch& batch, MicroBatchLoss loss_fn) {
  return state_->evaluate(batch, loss_fn);
}

}  // namespace lockstep::parallel
