// Optimizer steps: one pass over parameters, their gradients and their state, in place.
//
// All tensors of a call have one dtype (f32 or f64) and device, those of a parameter its shape, and the state is contiguous;
// throws InvalidArgument naming the operands otherwise, before anything is changed. Parameters and gradients may have any
// strides. Nothing is recorded; the parameters' versions go up, so that a graph that saved one notices.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "lockstep/tensor/tensor.h"

namespace lockstep::raw {

// A parameter, its gradient and what the optimizer remembers about it; state that a step has no use for is null.
struct Stepped {
  const Tensor* parameter;
  const Tensor* grad;
  const Tensor* state[2];
};
inline constexpr std::size_t kMostStepped = 64;  // parameters of one call, which a GPU steps in one launch

// The same as kernels see it: contiguous memory of `count` elements.
struct SteppedMemory {
  void* parameter;
  const void* grad;
  void* state[2];
  std::int64_t count;
};

// Numbers of one SGD step, as in PyTorch's torch.optim.SGD.
struct SgdStep {
  double lr = 0;
  double momentum = 0;
  double dampening = 0;
  double weight_decay = 0;
  bool nesterov = false;
  bool maximize = false;
  bool first = false;  // the buffer holds zeros: it becomes the gradient, without dampening
  // In a CUDA graph: kernels find the numbers there, in the device's memory, instead of here.
  const SgdStep* moving = nullptr;
};

// With g = (maximize ? -grad : grad) + weight_decay p and, where momentum is not 0,
// buffer = first ? g : momentum buffer + (1 - dampening) g and g = nesterov ? g + momentum buffer : buffer:
// p -= lr g. The state is the momentum buffer, where momentum is not 0.
void sgd_step(std::span<const Stepped> list, const SgdStep& step);

// Numbers of one Adam step, the t-th, t counted from 1.
struct AdamStep {
  double beta1 = 0;
  double beta2 = 0;
  double eps = 0;
  double weight_decay = 0;
  double rate = 0;                   // lr / (1 - beta1^t)
  double root = 1;                   // sqrt(1 - beta2^t)
  double shrink = 1;                 // 1 - lr weight_decay
  bool decoupled = false;            // AdamW: the parameter shrinks; otherwise the gradient grows by weight_decay p
  const AdamStep* moving = nullptr;  // as in SgdStep
};

// mean = beta1 mean + (1 - beta1) g, square = beta2 square + (1 - beta2) g^2, p -= rate mean / (sqrt(square) / root + eps):
// D. Kingma, J. Ba, "Adam", 2015, algorithm 1, in PyTorch's arrangement; decoupled: I. Loshchilov, F. Hutter, "Decoupled
// Weight Decay Regularization", 2019. The state is mean and square.
void adam_step(std::span<const Stepped> list, const AdamStep& step);

}  // namespace lockstep::raw
