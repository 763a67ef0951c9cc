// A model in stages, which several ranks run one after another, as the training modes see it. Not installed.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include "lockstep/parallel/step/shared_runner_internal.h"
#include "lockstep/parallel/step/step.h"

namespace lockstep::parallel {

class InTurn;
struct MicroBatchPlan;

// A step of a model in stages.
struct StagedStep {
  const MicroBatchPlan& plan;
  const Batch& batch;  // the same on all stages
  MicroBatchLoss loss_fn;
  InTurn& in_turn;
  std::vector<Tensor>& losses;  // results, by micro-batch, on all ranks
};

// The runner of the root of a model in stages. The parameters and buffers of other stages have no tensor on this rank, and
// so are not listed: modes train what the module lists.
class StageRunner : public SharedRunner {
 public:
  using SharedRunner::SharedRunner;
  // Runs the forward of all micro-batches and, in training, their backward, in the order of the schedule.
  virtual void run_micro_batches(const StagedStep& step) const = 0;
  virtual int chunks() const = 0;  // of the model, on each rank
  // The backwards of a chunk in a step that are in two parts (BackwardPart).
  virtual int split_backwards(int chunk) const = 0;
  // The model chunk of this rank that has the parameter.
  virtual int chunk_of(const nn::Parameter& parameter) const = 0;
  // Where each parameter of the whole model is, in its order; the slices of one count as one. Several ranks have a parameter
  // that their stages share, all but the first one of them a copy.
  enum class Place : std::uint8_t { kHere, kCopy, kElsewhere };
  virtual std::vector<Place> places() const = 0;
  // Whether several modules of the chain share the parameter: each of them has a gradient of its own.
  virtual bool is_shared(const nn::Parameter& parameter) const = 0;
  // Calls body() while the module has the parameters and buffers of all stages. Collective.
  virtual void with_all_stages(FunctionRef<void()> body) const = 0;
};

// The module's stage runner; null: it is not in stages.
std::shared_ptr<const StageRunner> stage_runner(const nn::Module& module);

}  // namespace lockstep::parallel
