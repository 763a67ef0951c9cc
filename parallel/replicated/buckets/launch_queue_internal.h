// The models whose gradients are reduced over the same ranks, on a group and its duplicates. Backward may reach them
// in another order on each rank; the queue's order of launches and waits prevents deadlock.
#pragma once

#include <vector>

#include "lockstep/autograd/history_internal.h"
#include "lockstep/parallel/comm/process_group.h"

namespace lockstep::parallel {

// The interface of a model to the queue.
class ReducedModel {
 public:
  virtual const ProcessGroup& own_group() const = 0;
  // True if a step of this model ends with `run`.
  virtual bool takes_part(const autograd::Run& run) const = 0;
  virtual void launch_rest() = 0;
  virtual void finish_step() = 0;

 protected:
  ~ReducedModel() = default;
};

class LaunchQueue final {
 public:
  // Returns the queue of the group and its duplicates.
  static LaunchQueue& of(ProcessGroup& group);

  void add(ReducedModel* model) { models_.push_back(model); }
  void remove(const ReducedModel* model) { std::erase(models_, model); }
  bool is_shared() const { return models_.size() > 1; }
  // True if a model launches its buckets on this group itself, not on a duplicate.
  bool has_model_on(const ProcessGroup& group) const;
  // Called at the end of backward: launches the remaining buckets of all models with a step in it, in the order of the
  // models' construction.
  void launch_rest(const autograd::Run& run);
  void finish_steps(const autograd::Run& run);  // called after launch_rest, in the same order

 private:
  std::vector<ReducedModel*> models_;
};

}  // namespace lockstep::parallel
