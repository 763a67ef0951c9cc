// Losses. Each comes as a class, which keeps the options, and as a function of the same meaning.
//
// `reduction` is kMean by default; the result is then 0-d, as for kSum, and has the shape of one loss per element (per
// sample for the classifiers) for kNone. Values and gradients are PyTorch's. All functions throw InvalidArgument, naming
// the loss and its operands, where shapes, dtypes or devices do not fit.
#pragma once

#include <cstdint>

#include "lockstep/tensor/losses.h"
#include "lockstep/tensor/tensor.h"

namespace lockstep::nn {

using raw::Reduction;

struct BCELossOptions {
  Reduction reduction = Reduction::kMean;  // kMean, kSum or kNone
};

// Binary cross-entropy of probabilities x in [0, 1]: -(y log x + (1 - y) log(1 - x)), the logarithms cut at -100.
// x and target have one shape. Throws InvalidArgument, naming value and place, for an x outside [0, 1] or NaN.
Tensor binary_cross_entropy(const Tensor& x, const Tensor& target, const BCELossOptions& options = {});

struct BCEWithLogitsLossOptions {
  Reduction reduction = Reduction::kMean;  // kMean, kSum or kNone
  Tensor pos_weight = {};                  // factor of the positive term; broadcasts to x
};

// Binary cross-entropy of sigmoid(x), without overflow: (1 - y) x + l (log(1 + e^-|x|) + max(-x, 0)) with
// l = 1 + (pos_weight - 1) y. x and target have one shape.
Tensor binary_cross_entropy_with_logits(const Tensor& x, const Tensor& target,
                                        const BCEWithLogitsLossOptions& options = {});

struct MSELossOptions {
  Reduction reduction = Reduction::kMean;  // kMean, kSum or kNone
};

// (x - y)^2. Shapes that differ broadcast, with a warning.
Tensor mse_loss(const Tensor& x, const Tensor& target, const MSELossOptions& options = {});

struct L1LossOptions {
  Reduction reduction = Reduction::kMean;  // kMean, kSum or kNone
};

// |x - y|, with slope 0 where they are equal. Shapes that differ broadcast, with a warning.
Tensor l1_loss(const Tensor& x, const Tensor& target, const L1LossOptions& options = {});

struct CrossEntropyLossOptions {
  Reduction reduction = Reduction::kMean;  // kMean, kSum or kNone
  std::int64_t ignore_index = -100;        // samples of this class cost nothing and do not count
  double label_smoothing = 0.0;            // this share of the label is spread evenly over all classes
  Tensor weight = {};                      // (classes), the cost of each
};

// log_softmax and negative log likelihood in one. x (batch, classes, d1, ...) or (classes); target holds classes, i64
// or i32 of shape (batch, d1, ...) or (), or probabilities of x's shape and dtype. The mean divides by the sum of the
// weights of the samples that count (NaN where none does), for probabilities by the number of samples. Throws
// InvalidArgument for a class outside [0, classes), naming it and its place.
Tensor cross_entropy(const Tensor& x, const Tensor& target, const CrossEntropyLossOptions& options = {});

struct NLLLossOptions {
  Reduction reduction = Reduction::kMean;  // kMean, kSum or kNone
  std::int64_t ignore_index = -100;        // as CrossEntropyLossOptions
  Tensor weight = {};                      // (classes), the cost of each
};

// Negative log likelihood: -weight[y] x[y], x (batch, classes, d1, ...) or (classes) holding log probabilities. Target,
// mean and errors as for cross_entropy with classes.
Tensor nll_loss(const Tensor& x, const Tensor& target, const NLLLossOptions& options = {});

// A loss function with its options: criterion(x, target).
template <class Options, Tensor (*kFunction)(const Tensor& x, const Tensor& target, const Options& options)>
class Loss {
 public:
  Loss() = default;
  explicit Loss(const Options& options) : options_(options) {}
  // The loss.
  Tensor operator()(const Tensor& x, const Tensor& target) const { return kFunction(x, target, options_); }

 private:
  Options options_;
};

using BCELoss = Loss<BCELossOptions, binary_cross_entropy>;  // of binary_cross_entropy
// Of binary_cross_entropy_with_logits.
using BCEWithLogitsLoss = Loss<BCEWithLogitsLossOptions, binary_cross_entropy_with_logits>;
using MSELoss = Loss<MSELossOptions, mse_loss>;                         // of mse_loss
using L1Loss = Loss<L1LossOptions, l1_loss>;                            // of l1_loss
using CrossEntropyLoss = Loss<CrossEntropyLossOptions, cross_entropy>;  // of cross_entropy
using NLLLoss = Loss<NLLLossOptions, nll_loss>;                         // of nll_loss

}  // namespace lockstep::nn
