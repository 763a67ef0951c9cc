// Gradients that stand when a step begins: set aside, so that the step's sum and scale are its own. They are added to
// the step's gradients at the end, as autograd adds to a gradient, or take part in its sums. Not installed.
#pragma once

#include <utility>
#include <vector>

#include "lockstep/nn/parameter.h"
#include "lockstep/parallel/replicated/micro_batch_internal.h"
#include "lockstep/tensor/ops_internal.h"

namespace lockstep::parallel {

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

  // `sum`, of the dtype of sums, with one of them times `factor` added to it: in its place where it is defined.
  Tensor join(std::size_t p, const Tensor& sum, double factor = 1) {
    if (p >= grads_.size() || !grads_[p].defined()) return sum;
    const Tensor standing = widened(std::exchange(grads_[p], Tensor()));
    scale_gradient(standing, factor);
    return add_up(sum, standing);
  }
  // Adds them to the gradients that the step has left.
  void add_back() {
    for (std::size_t p = 0; p < grads_.size(); ++p) {
      const Tensor& leaf = parameters_[p].master();
      if (grads_[p].defined()) set_rounded(leaf, join(p, widened(leaf.grad())));
    }
  }

 private:
  const std::vector<nn::Parameter>& parameters_;
  std::vector<Tensor> grads_;  // empty where none stood
};

}  // namespace lockstep::parallel
