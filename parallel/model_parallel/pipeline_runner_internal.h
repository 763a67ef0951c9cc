// Runs a model in stages: the runner of its root. Not installed.
#pragma once

#include <array>
#include <memory>
#include <vector>

#include "lockstep/parallel/model_parallel/stage_messages_internal.h"
#include "lockstep/parallel/model_parallel/stage_tensors_internal.h"
#include "lockstep/parallel/model_parallel/stage_ties_internal.h"
#include "lockstep/parallel/schedule/schedule.h"
#include "lockstep/parallel/step/stage_runner_internal.h"

namespace lockstep::parallel {

class PipelineStep;

class PipelineRunner final : public StageRunner {
 public:
  // Takes the tensors of other ranks' stages away from `root`. `group` is that of the stages; null: this process alone.
  PipelineRunner(const char* op, nn::Module& root, std::shared_ptr<ProcessGroup> group,
                 std::shared_ptr<ProcessGroup> mesh, Stages stages, const ScheduleTable& table);

  // The root's forward. On the last stage the loss function calls it, and gets the result of the chain; on the others the
  // step does, so that random numbers have the sites that they have below the root.
  Tensor run(const std::vector<Tensor>& inputs, Forward forward) const override;
  void run_micro_batches(const StagedStep& step) const override;
  int chunks() const override { return stages_.chunks(); }
  int split_backwards(int chunk) const override;
  int chunk_of(const nn::Parameter& parameter) const override { return tensors_.chunk_of(parameter); }
  std::vector<Place> places() const override { return tensors_.places(); }
  bool is_shared(const nn::Parameter& parameter) const override { return ties_.has(parameter); }
  void with_all_stages(FunctionRef<void()> body) const override;

  const nn::Module& root() const { return root_; }
  const Stages& stages() const { return stages_; }
  const ScheduleTable& table() const { return table_; }
  const std::vector<ScheduleAction>& rows() const { return rows_; }  // of this rank, with messages
  StageTies& ties() const { return ties_; }

  std::int64_t sent_bytes() const { return messages_.sent_bytes(); }  // in the last step
  std::int64_t outbox_bytes() const { return messages_.outbox_bytes(); }

 private:
  void share_losses(std::vector<Tensor>& losses) const;

  const char* op_;
  nn::Module& root_;
  Stages stages_;
  ScheduleTable table_;
  std::vector<ScheduleAction> rows_;
  mutable StageTensors tensors_;
  mutable StageTies ties_;
  mutable StageMessages messages_;
  mutable PipelineStep* step_ = nullptr;         // in progress
  mutable bool is_whole_ = false;                // inside with_all_stages
  mutable std::array<bool, 2> is_checked_ = {};  // the root's forward, in evaluation and in training
};

}  // namespace lockstep::parallel
