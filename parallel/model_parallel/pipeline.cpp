#include "lockstep/parallel/model_parallel/pipeline.h"

#include "lockstep/parallel/model_parallel/pipeline_stages_internal.h"
#include "lockstep/parallel/step/local_training_internal.h"
#include "lockstep/parallel/step/recorder.h"

namespace lockstep::parallel {

struct Pipeline::State {
  State(nn::Module& module, const DeviceMesh& axis, const PipelineOptions& options)
      : stages(cut_into_stages("Pipeline", module, axis, options)),
        training("Pipeline", module, options.micro_batches_per_rank, options.weighting) {}

  std::shared_ptr<const PipelineRunner> stages;
  LocalTraining training;
};

Pipeline::Pipeline(nn::Module& module, const DeviceMesh& axis, const PipelineOptions& options)
    : state_(std::make_unique<State>(module, axis, options)) {
  recorder_ = Recorder::from_environment(*this);
}
Pipeline::~Pipeline() = default;

nn::Module& Pipeline::module() const { return state_->training.module(); }
std::shared_ptr<ProcessGroup> Pipeline::group() const { return state_->stages->group; }
double Pipeline::clip_grad_norm_(double max_norm) { return state_->training.clip_grad_norm_(max_norm); }
const ScheduleTable& Pipeline::schedule() const { return state_->stages->table(); }
PipelinePlan Pipeline::plan() const { return plan_of(*state_->stages); }
TrainingPlan Pipeline::training_plan() const { return state_->training.plan(); }
const TrafficStats& Pipeline::traffic() { return state_->training.traffic(); }
NoSync Pipeline::no_sync() { return state_->training.no_sync(); }
void Pipeline::request_stop() { state_->training.request_stop(); }
bool Pipeline::stop_requested() const { return state_->training.is_stopped(); }
StepWatchers& Pipeline::watchers() { return state_->training.watchers(); }

Tensor Pipeline::run(const Batch& batch, MicroBatchLoss loss_fn) { return state_->training.run(batch, loss_fn); }
Tensor Pipeline::run_evaluation(const Batch& batch, MicroBatchLoss loss_fn) {
  return state_->training.evaluate(batch, loss_fn);
}

// The ranks of the axis have different stages, and no group has the same ones.
std::shared_ptr<ModelState> Pipeline::model_state() { return replicated_state(module(), nullptr); }

}  // namespace lockstep::parallel
