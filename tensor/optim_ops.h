// Optimizer steps: one pass over a parameter, its gradient and its state, in place.
//
// All tensors of a call have the parameter's shape, dtype (f32 or f64) and device, and the state is contiguous; throws
// InvalidArgument naming the operands otherwise. The parameter and the gradient may have any strides. Nothing is
// recorded; the parameter's version goes up, so that a graph that saved it notices.
#pragma once

#include "lockstep/tensor/tensor.h"

namespace lockstep::inline LOCKSTEP_ABI::raw {

// Numbers of one SGD step, as in PyTorch's torch.optim.SGD.
struct SgdStep {
  double lr = 0;
  double momentum = 0;
  double dampening = 0;
  double weight_decay = 0;
  bool nesterov = false;
  bool maximize = false;
  bool first = false;  // the buffer holds zeros: it becomes the gradient, without dampening
};

// With g = (maximize ? -grad : grad) + weight_decay p and, where momentum is not 0,
// buffer = first ? g : momentum buffer + (1 - dampening) g and g = nesterov ? g + momentum buffer : buffer:
// p -= lr g. `buffer` is undefined where momentum is 0.
void sgd_step(const Tensor& parameter, const Tensor& grad, const Tensor& buffer, const SgdStep& step);

// Numbers of one Adam step. `correction1` and `correction2` are 1 - beta^t, t counted from 1.
struct AdamStep {
  double lr = 0;
  double beta1 = 0;
  double beta2 = 0;
  double eps = 0;
  double weight_decay = 0;
  double correction1 = 1;
  double correction2 = 1;
  bool decoupled = false;  // AdamW: the parameter shrinks by lr weight_decay; otherwise the gradient grows by it
};

// mean = beta1 mean + (1 - beta1) g, square = beta2 square + (1 - beta2) g^2,
// p -= lr / correction1 * mean / (sqrt(square) / sqrt(correction2) + eps): D. Kingma, J. Ba, "Adam", 2015, algorithm 1,
// in PyTorch's arrangement; decoupled: I. Loshchilov, F. Hutter, "Decoupled Weight Decay Regularization", 2019.
void adam_step(const Tensor& parameter, const Tensor& grad, const Tensor& mean, const Tensor& square,
               const AdamStep& step);

}  // namespace lockstep::inline LOCKSTEP_ABI::raw
