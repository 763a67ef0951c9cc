// Gradients of earlier steps or backwards, set aside when a step begins: the step's scale must not apply to them. They
// are added to the step's gradients at its end, as autograd adds to a gradient, or to its sums before the reduction.
#pragma once

#include <utility>
#include <vector>

#include "lockstep/nn/parameter.h"
#include "lockstep/parallel/step/micro_batch_internal.h"
#include "lockstep/tensor/ops/ops_internal.h"

namespace lockstep::parallel {

class AccumulatedGradients {
 public:
  explicit AccumulatedGradients(const std::vector<nn::Parameter>& parameters) : parameters_(parameters) {
    for (std::size_t p = 0; p < parameters_.size(); ++p) {
      const Tensor grad = parameters_[p].master().grad();
      if (!grad.defined()) continue;
      grads_.resize(parameters_.size());
      grads_[p] = raw::clone(grad);  // the step may write to its memory
      parameters_[p].master().set_grad(Tensor());
    }
  }
  // After an error: restores the gradients that have not been added.
  ~AccumulatedGradients() {
    for (std::size_t p = 0; p < grads_.size(); ++p) {
      if (grads_[p].defined()) parameters_[p].master().set_grad(grads_[p]);
    }
  }
  AccumulatedGradients(const AccumulatedGradients&) = delete;
  AccumulatedGradients& operator=(const AccumulatedGradients&) = delete;

  // Returns `sum` (of sum_dtype) plus `factor` times the parameter's gradient, in sum's memory if that is defined.
  Tensor join(std::size_t p, const Tensor& sum, double factor) const {
    if (p >= grads_.size() || !grads_[p].defined()) return sum;
    const bool is_wide = grads_[p].dtype() == sum_dtype(grads_[p].dtype());
    const Tensor earlier = is_wide ? raw::clone(grads_[p]) : widened(grads_[p]);
    scale_gradient(earlier, factor);
    return add_up(sum, earlier);
  }
  // At the end of the step: adds the accumulated gradients to its gradients, or forgets those that have joined its sums.
  void add_back() {
    for (std::size_t p = 0; p < grads_.size(); ++p) {
      const Tensor& leaf = parameters_[p].master();
      if (grads_[p].defined()) set_rounded(leaf, add_up(widened(leaf.grad()), widened(grads_[p])));
    }
    forget();
  }
  void forget() { grads_.clear(); }

 private:
  const std::vector<nn::Parameter>& parameters_;
  std::vector<Tensor> grads_;  // by parameter; undefined or missing: the parameter has none
};

}  // namespace lockstep::parallel
