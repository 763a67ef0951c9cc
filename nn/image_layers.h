/// \file
/// Layers for images (batch, channels, height, width). Names, defaults and initialisation are PyTorch's. A Size2d is
/// one number for both dimensions, or {height, width}.
#pragma once

#include <cstdint>

#include "lockstep/nn/module.h"
#include "lockstep/tensor/size2d.h"

namespace lockstep::nn {

struct Conv2dOptions {
  Size2d stride = 1;        ///< distance between windows
  Size2d padding = 0;       ///< zeros added on each side
  Size2d dilation = 1;      ///< distance between the elements of a window
  std::int64_t groups = 1;  ///< output channels depend only on the input channels of their group
  bool bias = true;         ///< adds a learned bias to each channel
};

/// y = cross-correlation of x with weight, + bias. x (n, in, h, w) -> (n, out, h', w') with h' = floor((h + 2 padding -
/// dilation (kernel - 1) - 1) / stride) + 1. weight (out, in / groups, kernel) and bias (out), both from U(-1/sqrt(f),
/// 1/sqrt(f)) with f = in / groups kernel.height kernel.width.
class Conv2d : public Module {
 public:
  Conv2d(std::int64_t in, std::int64_t out, const Size2d& kernel, const Conv2dOptions& options = {});
  Tensor forward(const Tensor& x) const override;

  Parameter& weight;  ///< (out, in / groups, kernel)
  Parameter& bias;    ///< (out); an undefined tensor if `.bias` is false

 private:
  Conv2dOptions options_;
};

struct MaxPool2dOptions {
  Size2d stride = 0;       ///< 0: the kernel's size
  Size2d padding = 0;      ///< at most half the kernel; counts as -infinity
  Size2d dilation = 1;     ///< distance between the elements of a window
  bool ceil_mode = false;  ///< a last window may reach past the end
};

/// The largest element of each window: (n, c, h, w) -> (n, c, h', w'). Sizes are those of Conv2d; ceil_mode rounds them
/// up, except for a window that would start after the image.
class MaxPool2d : public Module {
 public:
  explicit MaxPool2d(const Size2d& kernel, const MaxPool2dOptions& options = {}) : kernel_(kernel), options_(options) {}
  Tensor forward(const Tensor& x) const override;

 private:
  Size2d kernel_;
  MaxPool2dOptions options_;
};

struct AvgPool2dOptions {
  Size2d stride = 0;              ///< 0: the kernel's size
  Size2d padding = 0;             ///< zeros added on each side
  bool ceil_mode = false;         ///< a last window may reach past the end; elements past the end never count
  bool count_include_pad = true;  ///< padding counts as zeros; if false, not at all
};

/// The mean of each window: (n, c, h, w) -> (n, c, h', w'). Sizes are those of MaxPool2d.
class AvgPool2d : public Module {
 public:
  explicit AvgPool2d(const Size2d& kernel, const AvgPool2dOptions& options = {}) : kernel_(kernel), options_(options) {}
  Tensor forward(const Tensor& x) const override;

 private:
  Size2d kernel_;
  AvgPool2dOptions options_;
};

struct BatchNorm2dOptions {
  double eps = 1e-5;      ///< added to the variance
  double momentum = 0.1;  ///< weight of the batch in the running statistics
  bool affine = true;     ///< has weight and bias
};

/// y = (x - mean) / sqrt(var + eps) * weight + bias, for each channel of x (n, features, h, w). While training, mean and
/// (biased) variance are those of the batch, and running_mean and running_var move towards them by `momentum` (with the
/// unbiased variance). In eval mode mean and variance are the running statistics. Each micro-batch and each rank uses
/// the statistics of its own samples; the running statistics of the first one are kept. (Ioffe and Szegedy, 2015)
class BatchNorm2d : public Module {
 public:
  explicit BatchNorm2d(std::int64_t features, const BatchNorm2dOptions& options = {});
  Tensor forward(const Tensor& x) const override;

  Parameter& weight;            ///< (features), starts as 1; an undefined tensor if `.affine` is false
  Parameter& bias;              ///< (features), starts as 0; an undefined tensor if `.affine` is false
  Buffer& running_mean;         ///< (features), starts as 0
  Buffer& running_var;          ///< (features), starts as 1
  Buffer& num_batches_tracked;  ///< 0-d, i64: number of forwards in training mode

 private:
  BatchNorm2dOptions options_;
};

}  // namespace lockstep::nn
