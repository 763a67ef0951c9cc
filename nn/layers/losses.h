/// \file
/// Losses. Each is available as a function, and as a class that stores the options.
///
/// `reduction` is kMean by default. The result is 0-d for kMean and kSum. For kNone it has one loss per element, or per
/// sample for classification losses. Values and gradients are PyTorch's. All functions throw InvalidArgument, naming
/// the loss and its operands, if shapes, dtypes or devices do not match.
#pragma once

#include <cstdint>

#include "lockstep/tensor/ops/losses.h"
#include "lockstep/tensor/tensor.h"

namespace lockstep::nn {

using raw::Reduction;

struct BCELossOptions {
  Reduction reduction = Reduction::kMean;  ///< kMean, kSum or kNone
  Tensor weight = {};                      ///< factor of each element's loss; broadcasts to x
};

/// Binary cross-entropy of probabilities x in [0, 1]: -(y log x + (1 - y) log(1 - x)), the logarithms clamped to at
/// least -100. x and target have the same shape. The mean divides by the number of elements, whatever the weights.
/// Throws InvalidArgument, naming value and index, for x outside [0, 1] or NaN.
Tensor binary_cross_entropy(const Tensor& x, const Tensor& target, const BCELossOptions& options = {});

struct BCEWithLogitsLossOptions {
  Reduction reduction = Reduction::kMean;  ///< kMean, kSum or kNone
  Tensor pos_weight = {};                  ///< factor of the positive term; broadcasts to x
  Tensor weight = {};                      ///< factor of each element's loss; broadcasts to x
};

/// Binary cross-entropy of sigmoid(x), without overflow: (1 - y) x + l (log(1 + e^-|x|) + max(-x, 0)) with
/// l = 1 + (pos_weight - 1) y. x and target have the same shape.
Tensor binary_cross_entropy_with_logits(const Tensor& x, const Tensor& target,
                                        const BCEWithLogitsLossOptions& options = {});

struct MSELossOptions {
  Reduction reduction = Reduction::kMean;  ///< kMean, kSum or kNone
};

/// (x - y)^2. Different shapes broadcast, with a warning.
Tensor mse_loss(const Tensor& x, const Tensor& target, const MSELossOptions& options = {});

struct L1LossOptions {
  Reduction reduction = Reduction::kMean;  ///< kMean, kSum or kNone
};

/// |x - y|, with gradient 0 where x = y. Different shapes broadcast, with a warning.
Tensor l1_loss(const Tensor& x, const Tensor& target, const L1LossOptions& options = {});

struct CrossEntropyLossOptions {
  Reduction reduction = Reduction::kMean;  ///< kMean, kSum or kNone
  std::int64_t ignore_index = -100;        ///< samples of this class are ignored
  double label_smoothing = 0.0;            ///< fraction of the label that is spread evenly over all classes
  Tensor weight = {};                      ///< (classes), the weight of each class
};

/// log_softmax and negative log likelihood combined. x is (batch, classes, d1, ...) or (classes). target holds class
/// indices, i64 or i32 of shape (batch, d1, ...) or (), or probabilities of x's shape and dtype. The mean divides by
/// the total weight of the samples that are not ignored (NaN if there are none); for probabilities, by the number of
/// samples. Throws InvalidArgument for a class outside [0, classes), naming the class and its index in target.
Tensor cross_entropy(const Tensor& x, const Tensor& target, const CrossEntropyLossOptions& options = {});

struct NLLLossOptions {
  Reduction reduction = Reduction::kMean;  ///< kMean, kSum or kNone
  std::int64_t ignore_index = -100;        ///< as CrossEntropyLossOptions
  Tensor weight = {};                      ///< (classes), the weight of each class
};

/// Negative log likelihood: -weight[y] x[y], where x (batch, classes, d1, ...) or (classes) holds log probabilities.
/// Target, mean and errors are those of cross_entropy with class indices.
Tensor nll_loss(const Tensor& x, const Tensor& target, const NLLLossOptions& options = {});

struct SmoothL1LossOptions {
  Reduction reduction = Reduction::kMean;  ///< kMean, kSum or kNone
  double beta = 1.0;                       ///< differences below it are squared; 0: l1_loss
};

/// With d = |x - y|: d^2 / (2 beta) for d < beta, and d - beta / 2 above. Different shapes broadcast, with a warning.
Tensor smooth_l1_loss(const Tensor& x, const Tensor& target, const SmoothL1LossOptions& options = {});

struct HuberLossOptions {
  Reduction reduction = Reduction::kMean;  ///< kMean, kSum or kNone
  double delta = 1.0;                      ///< differences below it are squared; above 0
};

/// beta times smooth_l1_loss, with beta = delta.
Tensor huber_loss(const Tensor& x, const Tensor& target, const HuberLossOptions& options = {});

/// The reduction of kl_div. kMean divides by the number of elements, kBatchMean by the size of dimension 0, which gives
/// the divergence of the definition.
enum class KLDivReduction : std::uint8_t { kNone, kMean, kSum, kBatchMean };

struct KLDivLossOptions {
  KLDivReduction reduction = KLDivReduction::kMean;  ///< kBatchMean is the mathematical definition
  bool log_target = false;                           ///< target holds logarithms of probabilities
};

/// Kullback-Leibler divergence of log probabilities x from the probabilities y: y (log y - x), 0 where y is 0. Different
/// shapes broadcast, with a warning; kBatchMean divides by the size of x's dimension 0.
Tensor kl_div(const Tensor& x, const Tensor& target, const KLDivLossOptions& options = {});

struct TripletMarginLossOptions {
  double margin = 1.0;                     ///< by how much the negative must be further away
  double p = 2.0;                          ///< order of the norm
  double eps = 1e-6;                       ///< added to the differences
  bool swap = false;                       ///< uses the distance from positive to negative if that is smaller
  Reduction reduction = Reduction::kMean;  ///< kMean, kSum or kNone
};

/// max(0, d(anchor, positive) - d(anchor, negative) + margin), d the norm over the last dimension; all (..., features).
Tensor triplet_margin_loss(const Tensor& anchor, const Tensor& positive, const Tensor& negative,
                           const TripletMarginLossOptions& options = {});

struct CosineEmbeddingLossOptions {
  double margin = 0.0;                     ///< similarities of dissimilar pairs below it cost nothing
  Reduction reduction = Reduction::kMean;  ///< kMean, kSum or kNone
};

/// 1 - cos(a, b) where target is 1, and max(0, cos(a, b) - margin) where it is -1. a and b (batch, features), target
/// (batch); or (features) and ().
Tensor cosine_embedding_loss(const Tensor& a, const Tensor& b, const Tensor& target,
                             const CosineEmbeddingLossOptions& options = {});

/// A loss function with its options: criterion(x, target).
template <class Options, Tensor (*kFunction)(const Tensor& x, const Tensor& target, const Options& options)>
class Loss {
 public:
  Loss() = default;
  explicit Loss(const Options& options) : options_(options) {}
  /// Calls the loss function with the stored options.
  Tensor operator()(const Tensor& x, const Tensor& target) const { return kFunction(x, target, options_); }

 private:
  Options options_;
};

/// A loss function of three tensors with its options.
template <class Options, Tensor (*kFunction)(const Tensor&, const Tensor&, const Tensor&, const Options& options)>
class LossOfThree {
 public:
  LossOfThree() = default;
  explicit LossOfThree(const Options& options) : options_(options) {}
  /// Calls the loss function with the stored options.
  Tensor operator()(const Tensor& a, const Tensor& b, const Tensor& c) const { return kFunction(a, b, c, options_); }

 private:
  Options options_;
};

using BCELoss = Loss<BCELossOptions, binary_cross_entropy>;  ///< see binary_cross_entropy
/// See binary_cross_entropy_with_logits.
using BCEWithLogitsLoss = Loss<BCEWithLogitsLossOptions, binary_cross_entropy_with_logits>;
using MSELoss = Loss<MSELossOptions, mse_loss>;                         ///< see mse_loss
using L1Loss = Loss<L1LossOptions, l1_loss>;                            ///< see l1_loss
using CrossEntropyLoss = Loss<CrossEntropyLossOptions, cross_entropy>;  ///< see cross_entropy
using NLLLoss = Loss<NLLLossOptions, nll_loss>;                         ///< see nll_loss
using SmoothL1Loss = Loss<SmoothL1LossOptions, smooth_l1_loss>;         ///< see smooth_l1_loss
using HuberLoss = Loss<HuberLossOptions, huber_loss>;                   ///< see huber_loss
using KLDivLoss = Loss<KLDivLossOptions, kl_div>;                       ///< see kl_div
/// See triplet_margin_loss.
using TripletMarginLoss = LossOfThree<TripletMarginLossOptions, triplet_margin_loss>;
/// See cosine_embedding_loss.
using CosineEmbeddingLoss = LossOfThree<CosineEmbeddingLossOptions, cosine_embedding_loss>;

}  // namespace lockstep::nn

namespace lockstep {
// LibTorch has these in torch, too.
using nn::binary_cross_entropy, nn::binary_cross_entropy_with_logits, nn::cosine_embedding_loss, nn::huber_loss;
using nn::kl_div, nn::l1_loss, nn::mse_loss, nn::nll_loss, nn::smooth_l1_loss, nn::triplet_margin_loss;
}  // namespace lockstep
