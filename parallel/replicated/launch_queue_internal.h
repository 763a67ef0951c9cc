// Models whose gradients are reduced over the same ranks, on a group and its duplicates: whichever model a backward
// reaches first on a rank, no two ranks wait for each other.
#pragma once

#include <vector>

#include "lockstep/autograd/history_internal.h"
#include "lockstep/parallel/comm/process_group.h"

namespace lockstep::parallel {

// What the queue needs of a model.
class ReducedModel {
 public:
  virtual const ProcessGroup& own_group() const = 0;
  // Whether a step of this model ends with `run`.
  virtual bool takes_part(const autograd::Run& run) const = 0;
  virtual void launch_rest() = 0;
  virtual void finish_step() = 0;

 protected:
  ~ReducedModel() = default;
};

class LaunchQueue final : public GroupAttachment {
 public:
  // The queue of the group and its duplicates.
  static LaunchQueue& of(ProcessGroup& group);

  void add(ReducedModel* model) { models_.push_back(model); }
  void remove(const ReducedModel* model) { std::erase(models_, model); }
  bool is_shared() const { return models_.size() > 1; }
  // Whether a model's buckets are launched on this very group.
  bool has_model_on(const ProcessGroup& group) const;
  // Whether a step of any model ends with `run`.
  bool has_step_of(const autograd::Run& run) const;
  // At the end of backward, for all models with a step in it, in the order in which they were made: launches what is
  // left of all, then finishes all.
  void launch_rest(const autograd::Run& run);
  void finish_steps(const autograd::Run& run);  // see launch_rest

 private:
  std::vector<ReducedModel*> models_;
};

}  // namespace lockstep::parallel
