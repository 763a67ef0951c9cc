/// \file
/// Raw losses: value and gradient in one pass each. nn/layers/losses.h has the public ones, with formulas.
#pragma once

#include <cstdint>

#include "lockstep/tensor/tensor.h"

namespace lockstep::raw {

enum class Reduction : std::uint8_t { kMean, kSum, kNone };

// Losses of one element of x and one of the target. kHuber squares differences below `delta`.
struct PointwiseLoss {
  enum Kind : std::uint8_t { kBce, kBceWithLogits, kMse, kL1, kHuber };
  Kind kind;
  double delta = 0;

  PointwiseLoss(Kind of_kind, double below = 0) : kind(of_kind), delta(below) {}  // NOLINT: converts
};

// All operands have the shape, dtype (f32 or f64) and device of x; `pos_weight` (logits only) may be undefined. The
// result is 0-d, or of that shape for kNone. Throws InvalidArgument, naming value and position, if kBce finds an x
// outside [0, 1].
Tensor pointwise_loss(const PointwiseLoss& loss, const Tensor& x, const Tensor& target, const Tensor& pos_weight,
                      Reduction reduction);
// The gradient of x, given `grad`, the gradient of the result.
Tensor pointwise_loss_backward(const PointwiseLoss& loss, const Tensor& grad, const Tensor& x, const Tensor& target,
                               const Tensor& pos_weight, Reduction reduction);

struct NllOptions {
  Reduction reduction = Reduction::kMean;
  std::int64_t ignore_index = -100;
  double label_smoothing = 0;
};

// The sum of the weights of the samples that count, for the backward of a mean. On the CPU a number, elsewhere an f64
// element in device memory, so that the host need not wait for it.
struct TotalWeight {
  double value = 0;
  Tensor elsewhere = {};

  // The address to which kernels of `device` write.
  double* place(Device device);
  // The address from which kernels read.
  const double* place() const { return elsewhere.defined() ? elsewhere.data<double>() : &value; }
};

// Negative log likelihood with smoothed labels. y (outer, classes, inner...) holds log probabilities, target (outer,
// inner...) i64 classes, weight (classes) or undefined. The loss of a sample of class t is
// -(1 - s) w_t y_t - s / classes sum_c w_c y_c, or 0 if t is ignored; the mean divides by the sum of the w_t that
// count, which is stored in *total_weight. Throws InvalidArgument, naming `op`, for a class outside [0, classes).
Tensor nll_loss(const char* op, const Tensor& y, const Tensor& target, const Tensor& weight, const NllOptions& options,
                TotalWeight* total_weight);
Tensor nll_loss_backward(const Tensor& grad, const Shape& shape, const Tensor& target, const Tensor& weight,
                         const NllOptions& options, const TotalWeight& total_weight);

// State of cross_entropy's backward besides its operands.
struct CrossEntropyState {
  Tensor statistics;  // (2, samples)
  TotalWeight total_weight = {};
};

// nll_loss of log_softmax(x, 1), without storing the log probabilities.
Tensor cross_entropy(const Tensor& x, const Tensor& target, const Tensor& weight, const NllOptions& options,
                     CrossEntropyState* state);
Tensor cross_entropy_backward(const Tensor& grad, const Tensor& x, const Tensor& target, const Tensor& weight,
                              const NllOptions& options, const CrossEntropyState& state);

}  // namespace lockstep::raw
