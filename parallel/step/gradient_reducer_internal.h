// The way from the complete gradients of one model to their sums over all ranks, which strategies build differently:
// buckets with an all-reduce each (replicated/buckets), units with a reduce-scatter each (sharded). Not installed.
#pragma once

#include <string>
#include <vector>

#include "lockstep/parallel/step/micro_batch_internal.h"
#include "lockstep/parallel/step/stats.h"
#include "lockstep/parallel/step/step_summary_internal.h"

namespace lockstep::parallel {

class GradientReducer {
 public:
  virtual ~GradientReducer() = default;

  // The trained parameters, by position.
  virtual std::size_t size() const = 0;
  virtual const Tensor& leaf(std::size_t parameter) const = 0;
  virtual const std::string& name(std::size_t parameter) const = 0;
  // The views that autograd accumulates in, by parameter; undefined where it has none, or only during backward.
  virtual std::vector<Tensor> views() const = 0;
  virtual DType dtype() const = 0;  // of the summary

  // --- a step, in this order ---------------------------------------------------------------------------------------
  // `own` is this rank's summary. The sums of gradients and summaries are multiplied by `scale`.
  virtual void begin_step(const StepSummary& own, double scale) = 0;
  virtual bool is_ready(std::size_t parameter) const = 0;
  // Takes a complete gradient; undefined: this rank did not use the parameter. Launches the reductions that can start.
  virtual void mark_ready(std::size_t parameter, const Tensor& gradient) = 0;
  // Only if the model is in stages: replaces `own`.
  virtual void set_summary(const StepSummary& own) = 0;
  // All gradients are ready: launches the rest.
  virtual void launch_rest() = 0;
  // Waits for all reductions. Returns the sum of all ranks' summaries.
  virtual StepSummary wait() = 0;
  // Multiplies the sums by scale.first, less the factor that the reductions have applied, and by scale.second, and
  // places them in grad() of what the optimizer steps, for all parameters that any rank used. Left out if all ranks
  // have joined.
  virtual void fill(const StepScale& scale) = 0;
  // -----------------------------------------------------------------------------------------------------------------

  virtual void fill_stats(TrainingStats& stats) const = 0;
  // Names of the parameters that this rank did not use in the last step.
  virtual std::vector<std::string> unused() const = 0;
};

}  // namespace lockstep::parallel
