// Gradients that stand when a step begins: set aside, so that the step's sum and scale are its own, and added at the end.
// Not installed.
#pragma once

#include <utility>
#include <vector>

#include "lockstep/nn/parameter.h"
#include "lockstep/parallel/shard_rows.h"
#include "lockstep/tensor/ops.h"

namespace lockstep::inline LOCKSTEP_ABI::parallel {

class StandingGradients {
 public:
  explicit StandingGradients(const std::vector<nn::Parameter>& parameters) : parameters_(parameters) {
    for (std::size_t p = 0; p < parameters_.size(); ++p) {
      const Tensor grad = parameters_[p].master().grad();
      if (!grad.defined()) continue;
      grads_.resize(parameters_.size());
      grads_[p] = raw::clone(grad);  // the step may write where it stands
      parameters_[p].master().set_grad(Tensor());
    }
  }
  // Puts them back as they were, unless they were added: after an error nothing is lost.
  ~StandingGradients() {
    for (std::size_t p = 0; p < grads_.size(); ++p) {
      if (grads_[p].defined()) parameters_[p].master().set_grad(grads_[p]);
    }
  }
  StandingGradients(const StandingGradients&) = delete;
  StandingGradients& operator=(const StandingGradients&) = delete;

  // Adds one of them, times `factor`, to what the step has given.
  void add_back(std::size_t p, double factor = 1) {
    if (p >= grads_.size() || !grads_[p].defined()) return;
    scale_gradient(grads_[p], factor);
    const Tensor standing = std::exchange(grads_[p], Tensor()), grad = parameters_[p].master().grad();
    if (grad.defined())
      raw::add_(grad, standing);
    else
      parameters_[p].master().set_grad(standing);
  }
  void add_back() {
    for (std::size_t p = 0; p < grads_.size(); ++p) add_back(p);
  }

 private:
  const std::vector<nn::Parameter>& parameters_;
  std::vector<Tensor> grads_;  // empty where none stood
};

}  // namespace lockstep::inline LOCKSTEP_ABI::parallel
