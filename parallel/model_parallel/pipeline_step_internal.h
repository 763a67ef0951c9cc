// One step of a model in stages on one rank: the rows of its schedule. Not installed.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/autograd/split_backward_internal.h"
#include "lockstep/base/callback.h"
#include "lockstep/parallel/model_parallel/pipeline_runner_internal.h"
#include "lockstep/parallel/step/micro_batch_loop_internal.h"
#include "lockstep/tensor/autocast.h"

namespace lockstep::parallel {

// The part of a backward that an action runs; null: none. The first stage has no input, so that its W is the whole backward.
std::optional<BackwardPart> part_of(const ScheduleAction& action);

class PipelineStep {
 public:
  PipelineStep(const PipelineRunner& pipeline, StageMessages& messages, const StagedStep& step);

  void run();
  // The forward of the root, which the loss function calls, or this object.
  Tensor run_root(const std::vector<Tensor>& inputs);

 private:
  using Place = std::pair<int, int>;  // stage, micro-batch
  // From the forward of a micro-batch in a stage to the end of its backward.
  struct Live {
    Tensor input = {};           // a leaf; undefined in the first stage
    Tensor output = {};          // in the last stage the loss
    Tensor gradient = {};        // of the output; undefined: none
    Tensor input_gradient = {};  // after the backward; undefined: none
    // With sequence parallelism this rank's positions, dimension -2 of the input and of the output; 0: all.
    std::int64_t positions = 0;
    std::optional<autograd::SplitBackward> split = std::nullopt;  // between I and W
    bool is_sent = false, is_done = false;                        // the input's gradient; B or W
  };

  bool is_left_out(const ScheduleAction& action) const;
  void skip(const ScheduleAction& action);
  void run_at(FunctionRef<std::string()> place, FunctionRef<void()> body);
  void run(const ScheduleAction& action);
  void run_traced(std::size_t row);
  void forward(int stage, int m);
  Tensor loss(int m);
  Tensor run_chain(const std::vector<Tensor>& inputs);
  void backward(const ScheduleAction& action);
  void backward_input(const ScheduleAction& action);
  void backward_weight(const ScheduleAction& action);
  void run_backward(const ScheduleAction& action, FunctionRef<void()> body);
  void pass_gradient(int stage, int m);
  void end_if_complete(int stage, int m);
  void put_input(int stage, int m, StageMessages::Message message);
  void put_gradient(int stage, int m, const Tensor& gradient) { live_[{stage, m}].gradient = gradient; }
  Batch rows(int m) const { return narrow_rows(step_.batch, plan_.rows(m)); }

  const PipelineRunner& pipeline_;
  const Stages& stages_;
  StageMessages& messages_;
  const StagedStep& step_;
  const MicroBatchPlan& plan_;
  const std::optional<DType> autocast_ = autocast_dtype();  // of all stages
  std::map<Place, Live> live_;
  Place now_ = {};                  // of the forward that runs
  const Batch* of_loss_ = nullptr;  // the micro-batch that the loss function has
  int calls_ = 0;                   // of the root, by the loss function
};

}  // namespace lockstep::parallel
