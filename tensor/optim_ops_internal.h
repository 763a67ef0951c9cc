// Optimizer steps: one pass over parameters, their gradients and their state, in place.
//
// All tensors of a call have one dtype (f32 or f64) and device; those of a parameter have its shape, and the state is
// contiguous. Otherwise throws InvalidArgument naming the operands, before anything is changed. Parameters and
// gradients may have any strides. Nothing is recorded; the parameters' versions are incremented, so that a graph that
// saved one detects the change.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "lockstep/tensor/tensor.h"

namespace lockstep::raw {

// A parameter, its gradient and its optimizer state; state that a step does not use is null.
struct Stepped {
  const Tensor* parameter;
  const Tensor* grad;
  const Tensor* state[2];
};
inline constexpr std::size_t kMostStepped = 64;  // maximum parameters per call; a GPU steps them in one launch

// The kernels' view of Stepped: contiguous memory of `count` elements.
struct SteppedMemory {
  void* parameter;
  const void* grad;
  void* state[2];
  std::int64_t count;
};

// Hyperparameters of one SGD step, as in torch.optim.SGD.
struct SgdStep {
  double lr = 0;
  double momentum = 0;
  double dampening = 0;
  double weight_decay = 0;
  bool nesterov = false;
  bool maximize = false;
  bool first = false;  // the buffer is initialised with the gradient, without dampening
  // In a CUDA graph: the copy of these hyperparameters in device memory, which kernels read instead.
  const SgdStep* on_device = nullptr;
};

// With g = (maximize ? -grad : grad) + weight_decay p and, if momentum is not 0,
// buffer = first ? g : momentum buffer + (1 - dampening) g and g = nesterov ? g + momentum buffer : buffer:
// p -= lr g. The state is the momentum buffer if momentum is not 0.
void sgd_step(std::span<const Stepped> list, const SgdStep& step);

// Hyperparameters of one Adam step, the t-th, t counted from 1.
struct AdamStep {
  double beta1 = 0;
  double beta2 = 0;
  double eps = 0;
  double weight_decay = 0;
  double rate = 0;                      // lr / (1 - beta1^t)
  double root = 1;                      // sqrt(1 - beta2^t)
  double shrink = 1;                    // 1 - lr weight_decay
  bool decoupled = false;               // AdamW: decays the parameter; otherwise adds weight_decay p to the gradient
  const AdamStep* on_device = nullptr;  // as in SgdStep
};

// mean = beta1 mean + (1 - beta1) g, square = beta2 square + (1 - beta2) g^2,
// p -= rate mean / (sqrt(square) / root + eps): D. Kingma, J. Ba, "Adam", 2015, algorithm 1, in PyTorch's form;
// decoupled: I. Loshchilov, F. Hutter, "Decoupled Weight Decay Regularization", 2019. The state is mean and square.
void adam_step(std::span<const Stepped> list, const AdamStep& step);

}  // namespace lockstep::raw
