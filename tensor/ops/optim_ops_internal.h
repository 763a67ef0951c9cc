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

inline constexpr std::size_t kMostStates = 3;  // maximum state tensors of a parameter

// A parameter, its gradient and its optimizer state; state that a step does not use is null.
struct Stepped {
  const Tensor* parameter;
  const Tensor* grad;
  const Tensor* state[kMostStates];
};
inline constexpr std::size_t kMostStepped = 64;  // maximum parameters per call; a GPU steps them in one launch

// The kernels' view of Stepped: contiguous memory of `count` elements.
struct SteppedMemory {
  void* parameter;
  const void* grad;
  void* state[kMostStates];
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
  bool amsgrad = false;                 // divides by the root of the largest square so far
  const AdamStep* on_device = nullptr;  // as in SgdStep
};

// mean = beta1 mean + (1 - beta1) g, square = beta2 square + (1 - beta2) g^2,
// p -= rate mean / (sqrt(square) / root + eps): D. Kingma, J. Ba, "Adam", 2015, algorithm 1, in PyTorch's form;
// decoupled: I. Loshchilov, F. Hutter, "Decoupled Weight Decay Regularization", 2019. The state is mean and square. With
// amsgrad (S. Reddi et al., "On the Convergence of Adam and Beyond", 2018), largest = max(largest, square) is the third
// state, and takes the place of square in p.
void adam_step(std::span<const Stepped> list, const AdamStep& step);

// Hyperparameters of one step of RMSprop or Adagrad.
struct RmsPropStep {
  double lr = 0;
  double alpha = 0;  // factor of the sums
  double rest = 0;   // factor of what is added to them
  double eps = 0;
  double weight_decay = 0;
  double momentum = 0;
  bool centered = false;
  const RmsPropStep* on_device = nullptr;  // as in SgdStep
};

// With g = grad + weight_decay p, square = alpha square + rest g^2, and if centered mean = alpha mean + rest g:
// u = g / (sqrt(square - (centered ? mean^2 : 0)) + eps), and p -= lr u or, if momentum is not 0,
// buffer = momentum buffer + u and p -= lr buffer. Adagrad is the case alpha = rest = 1. The state is square, the buffer
// if momentum is not 0, and the mean if centered.
void rmsprop_step(std::span<const Stepped> list, const RmsPropStep& step);

// Hyperparameters of one step of Lion.
struct LionStep {
  double lr = 0;
  double beta1 = 0;
  double beta2 = 0;
  double weight_decay = 0;
  const LionStep* on_device = nullptr;  // as in SgdStep
};

// p -= lr (sign(beta1 mean + (1 - beta1) g) + weight_decay p), then mean = beta2 mean + (1 - beta2) g: X. Chen et al.,
// "Symbolic Discovery of Optimization Algorithms", 2023. The state is the mean.
void lion_step(std::span<const Stepped> list, const LionStep& step);

}  // namespace lockstep::raw
