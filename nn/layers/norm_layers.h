/// \file
/// Normalisation over the last dimensions, over a batch, over groups of channels, and over single channels. Names and
/// defaults are PyTorch's.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <memory>
#include <optional>

#include "lockstep/nn/module.h"

namespace lockstep::nn {

struct LayerNormOptions {
  double eps = 1e-5;               ///< added to the variance
  bool elementwise_affine = true;  ///< has a weight, and a bias unless `.bias` is false
  bool bias = true;                ///< adds a learned bias; without effect if `.elementwise_affine` is false
};

/// y = (x - mean) / sqrt(var + eps) * weight + bias, with mean and (biased) variance over the last dimensions, whose
/// sizes are `shape`. weight starts as 1 and bias as 0, both of that shape. (Ba et al., 2016)
class LayerNorm : public Module {
 public:
  explicit LayerNorm(const Shape& shape, const LayerNormOptions& options = {});
  explicit LayerNorm(std::initializer_list<std::int64_t> shape, const LayerNormOptions& options = {})
      : LayerNorm(Shape(shape), options) {}
  Tensor forward(const Tensor& x) const override;

  Parameter& weight;  ///< starts as 1; an undefined tensor if `.elementwise_affine` is false
  Parameter& bias;    ///< starts as 0; an undefined tensor if `.elementwise_affine` or `.bias` is false

 private:
  Shape shape_;
  double eps_;
};

struct RMSNormOptions {
  std::optional<double> eps = std::nullopt;  ///< added to the mean square; by default the epsilon of x's dtype
  bool elementwise_affine = true;            ///< has a weight
};

/// y = x / sqrt(mean(x^2) + eps) * weight, the mean over the last dimensions, whose sizes are `shape`. weight starts as
/// 1 and has that shape. (Zhang and Sennrich, 2019)
class RMSNorm : public Module {
 public:
  explicit RMSNorm(const Shape& shape, const RMSNormOptions& options = {});
  explicit RMSNorm(std::initializer_list<std::int64_t> shape, const RMSNormOptions& options = {})
      : RMSNorm(Shape(shape), options) {}
  Tensor forward(const Tensor& x) const override;

  Parameter& weight;  ///< starts as 1; an undefined tensor if `.elementwise_affine` is false

 private:
  Shape shape_;
  std::optional<double> eps_;
};

struct BatchNormOptions {
  double eps = 1e-5;                     ///< added to the variance
  std::optional<double> momentum = 0.1;  ///< weight of a batch in the running statistics; nullopt: mean of all batches
  bool affine = true;                    ///< has weight and bias
  bool track_running_stats = true;       ///< false: no running statistics; eval mode uses those of the batch
  /// The micro-batches of a training step that update the running statistics. false: the first one. true: all, one after
  /// another, so that running statistics and num_batches_tracked are those of a loop over the micro-batches.
  bool all_micro_batches = false;
};

class SharedStatistics;

using BatchNorm1dOptions = BatchNormOptions;  ///< options of BatchNorm1d
using BatchNorm2dOptions = BatchNormOptions;  ///< options of BatchNorm2d

/// The common base of BatchNorm1d and BatchNorm2d.
///
/// y = (x - mean) / sqrt(var + eps) * weight + bias, for each channel of x (n, features, ...). While training, mean and
/// (biased) variance are those of the batch, and running_mean and running_var move towards them by `momentum` (with the
/// unbiased variance). Without `.momentum`, the weight of the n-th batch is 1 / n, so that they become the mean over all
/// batches. A batch without elements is counted, but does not change them. In eval mode mean and variance are the running
/// statistics. Throws InvalidArgument for one value for each channel while training. Each micro-batch and each rank uses the
/// statistics of its own samples (parallel::SyncBatchNorm: those of all that run at the same time); the running statistics
/// of the first one are kept, or with `.all_micro_batches` those of all. (Ioffe and Szegedy, 2015)
class BatchNorm : public Module {
 public:
  Parameter& weight;  ///< (features), starts as 1; an undefined tensor if `.affine` is false
  Parameter& bias;    ///< (features), starts as 0; an undefined tensor if `.affine` is false
  // Undefined tensors if `.track_running_stats` is false:
  Buffer& running_mean;         ///< (features), starts as 0
  Buffer& running_var;          ///< (features), starts as 1
  Buffer& num_batches_tracked;  ///< 0-d, i64: number of forwards in training mode

 protected:
  BatchNorm(std::int64_t features, const BatchNormOptions& options);
  Tensor normalised(const Tensor& x) const;  ///< y; x has the right number of dimensions
  std::int64_t features_;                    ///< number of channels

 private:
  friend class BatchNormAccess;
  BatchNormOptions options_;
  Buffer update_{Tensor()};                         // of one micro-batch in a training step; not listed
  std::shared_ptr<const SharedStatistics> shared_;  // null: the statistics of the batch
};

/// BatchNorm of vectors (n, features) and sequences (n, features, length).
class BatchNorm1d : public BatchNorm {
 public:
  explicit BatchNorm1d(std::int64_t features, const BatchNorm1dOptions& options = {}) : BatchNorm(features, options) {}
  Tensor forward(const Tensor& x) const override;
};

/// BatchNorm of images (n, features, h, w).
class BatchNorm2d : public BatchNorm {
 public:
  explicit BatchNorm2d(std::int64_t features, const BatchNorm2dOptions& options = {}) : BatchNorm(features, options) {}
  Tensor forward(const Tensor& x) const override;
};

struct GroupNormOptions {
  double eps = 1e-5;   ///< added to the variance
  bool affine = true;  ///< has weight and bias
};

/// y = (x - mean) / sqrt(var + eps) * weight + bias for x (n, channels, ...), with mean and (biased) variance over each
/// of `groups` groups of channels of each sample. A group of one value has variance 0 and gives the bias. (PyTorch throws
/// for a batch of one sample with one group of one value; here a sample's result never depends on the others.) (Wu and
/// He, 2018) Throws InvalidArgument unless the groups divide the channels.
class GroupNorm : public Module {
 public:
  GroupNorm(std::int64_t groups, std::int64_t channels, const GroupNormOptions& options = {});
  Tensor forward(const Tensor& x) const override;

  Parameter& weight;  ///< (channels), starts as 1; an undefined tensor if `.affine` is false
  Parameter& bias;    ///< (channels), starts as 0; an undefined tensor if `.affine` is false

 protected:
  /// y of x with `batch_dims` dimensions, 0 or 1, before the channels; throws for one value for each channel of a sample.
  Tensor normalised_instances(const Tensor& x, int batch_dims) const;

 private:
  std::int64_t groups_, channels_;
  double eps_;
};

struct InstanceNormOptions {
  double eps = 1e-5;    ///< added to the variance
  bool affine = false;  ///< has weight and bias
};
using InstanceNorm1dOptions = InstanceNormOptions;  ///< options of InstanceNorm1d
using InstanceNorm2dOptions = InstanceNormOptions;  ///< options of InstanceNorm2d

/// GroupNorm with one group for each channel of sequences (n, features, length) or (features, length). Without running
/// statistics. Throws InvalidArgument for a length of 1, in training and in eval mode.
class InstanceNorm1d : public GroupNorm {
 public:
  explicit InstanceNorm1d(std::int64_t features, const InstanceNorm1dOptions& options = {})
      : GroupNorm(features, features, {.eps = options.eps, .affine = options.affine}) {}
  Tensor forward(const Tensor& x) const override;
};

/// GroupNorm with one group for each channel of images (n, features, h, w) or (features, h, w). Without running
/// statistics. Throws InvalidArgument for images of one element, in training and in eval mode.
class InstanceNorm2d : public GroupNorm {
 public:
  explicit InstanceNorm2d(std::int64_t features, const InstanceNorm2dOptions& options = {})
      : GroupNorm(features, features, {.eps = options.eps, .affine = options.affine}) {}
  Tensor forward(const Tensor& x) const override;
};

}  // namespace lockstep::nn
