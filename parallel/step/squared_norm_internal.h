// The norm of the gradients of a model whose parameters may be slices, or on other ranks. Not installed.
#pragma once

#include <string>
#include <vector>

#include "lockstep/nn/gradient_norm_internal.h"
#include "lockstep/nn/parameter.h"
#include "lockstep/parallel/comm/process_group.h"
#include "lockstep/parallel/step/stage_runner_internal.h"

namespace lockstep::parallel {

// Completes the tree of nn/gradient_norm_internal.h above the trees of parameters and slices.
class SquaredNorm {
 public:
  // The norm is that of the parameters that the module lists, and of those of other ranks' stages.
  explicit SquaredNorm(nn::Module& module);
  // The sum of squares of a whole parameter (null), or of a slice. To be called for all parameters in the order of the
  // model, with 0 where there is no gradient; the slices of a parameter one after another. A slice that several ranks
  // have counts once.
  void add(const nn::ParameterSlice* slice, double sum);
  // The norm, on all ranks. Collective over them.
  double norm();

 private:
  struct Entry {
    const nn::ParameterSlice* first;  // null: a whole parameter
    nn::TreeSum sum;
    std::vector<double> of_slices;
  };
  void exchange();
  std::vector<double> of_parameters() const;
  ProcessGroup* slices_;  // of the ranks that have slices; null: all are here
  std::shared_ptr<const StageRunner> stages_;
  std::vector<Entry> entries_;
};

// Scales gradients as nn::clip_grad_norm_ with this norm does. Undefined ones stay so.
void scale_to_norm(const std::vector<Tensor>& gradients, double norm, double max_norm);

}  // namespace lockstep::parallel
