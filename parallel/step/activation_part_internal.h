// The part of an activation that this rank has, in a model that tensor parallelism has cut. Not installed.
#pragma once

#include <optional>
#include <vector>

#include "lockstep/nn/module.h"
#include "lockstep/parallel/step/shared_runner_internal.h"
#include "lockstep/tensor/tensor.h"
#include "lockstep/tensor/tensor_part.h"

namespace lockstep::parallel {

struct ActivationPart {
  Shape shape;  // of the whole tensor, as one rank with all slices has it
  TensorPart part;
};

// How the activations of one module are cut.
class ModuleActivations {
 public:
  explicit ModuleActivations(nn::Module& module);
  // The part of the module's first input, before its forward, and of its output, after that, on the thread that runs
  // it. Null: not known, or one of several calls, one for each slice.
  std::optional<ActivationPart> of_input(const Tensor& x) const;
  std::optional<ActivationPart> of_output(const Tensor& y) const;

 private:
  bool opens_region_ = false, closes_region_ = false;
  std::vector<SharedRunner::Columns> columns_;  // of outputs of this module and those below it
};

}  // namespace lockstep::parallel
