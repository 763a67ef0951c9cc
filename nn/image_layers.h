// Layers for pictures (images, channels, height, width). Names, defaults and initialisation are PyTorch's. A Size2d
// is one number for both sides, or {height, width}.
#pragma once

#include <cstdint>

#include "lockstep/nn/module.h"
#include "lockstep/tensor/size2d.h"

namespace lockstep::nn {

struct Conv2dOptions {
  Size2d stride = 1;        // steps between windows
  Size2d padding = 0;       // zeros on each side
  Size2d dilation = 1;      // steps between the elements of a window
  std::int64_t groups = 1;  // output channels of a group see the input channels of that group
  bool bias = true;         // add one to each channel
};

// y = cross-correlation of x with weight, + bias. x (n, in, h, w) -> (n, out, h', w') with h' = floor((h + 2 padding -
// dilation (kernel - 1) - 1) / stride) + 1. weight (out, in / groups, kernel) and bias (out), both from U(-1/sqrt(f),
// 1/sqrt(f)) with f = in / groups kernel.height kernel.width.
class Conv2d : public Module {
 public:
  Conv2d(std::int64_t in, std::int64_t out, const Size2d& kernel, const Conv2dOptions& options = {});
  Tensor forward(const Tensor& x) const override;

  Parameter& weight;  // (out, in / groups, kernel)
  Parameter& bias;    // undefined inside where `.bias` is false

 private:
  Conv2dOptions options_;
};

struct MaxPool2dOptions {
  Size2d stride = 0;       // 0: the kernel's size
  Size2d padding = 0;      // never the largest; at most half of the kernel
  Size2d dilation = 1;     // how far apart a window's elements stand
  bool ceil_mode = false;  // a last window may reach past the end
};

// The largest element of each window: (n, c, h, w) -> (n, c, h', w'), sizes as Conv2d's, or rounded up with
// ceil_mode, but for a window that would begin after the picture.
class MaxPool2d : public Module {
 public:
  explicit MaxPool2d(const Size2d& kernel, const MaxPool2dOptions& options = {}) : kernel_(kernel), options_(options) {}
  Tensor forward(const Tensor& x) const override;

 private:
  Size2d kernel_;
  MaxPool2dOptions options_;
};

struct AvgPool2dOptions {
  Size2d stride = 0;              // 0: the kernel's size
  Size2d padding = 0;             // zeros on each side
  bool ceil_mode = false;         // a last window may reach past the end; what is there never counts
  bool count_include_pad = true;  // padding counts as zeros; otherwise not at all
};

// The mean of each window: (n, c, h, w) -> (n, c, h', w'), sizes as MaxPool2d's.
class AvgPool2d : public Module {
 public:
  explicit AvgPool2d(const Size2d& kernel, const AvgPool2dOptions& options = {}) : kernel_(kernel), options_(options) {}
  Tensor forward(const Tensor& x) const override;

 private:
  Size2d kernel_;
  AvgPool2dOptions options_;
};

struct BatchNorm2dOptions {
  double eps = 1e-5;      // added to the variance
  double momentum = 0.1;  // share of the batch in the running values
  bool affine = true;     // with weight and bias
};

// y = (x - mean) / sqrt(var + eps) * weight + bias, for each channel of x (n, features, h, w). While training, mean and
// (biased) variance are the batch's, and running_mean and running_var move by `momentum` towards them (with the
// unbiased variance); in eval mode the running ones are taken. Of several micro-batches or ranks each takes its own
// rows' statistics, and the first one's running values are kept. (Ioffe and Szegedy, 2015)
class BatchNorm2d : public Module {
 public:
  explicit BatchNorm2d(std::int64_t features, const BatchNorm2dOptions& options = {});
  Tensor forward(const Tensor& x) const override;

  Parameter& weight;            // (features), starts as 1; undefined inside where `.affine` is false
  Parameter& bias;              // starts as 0
  Buffer& running_mean;         // (features), starts as 0
  Buffer& running_var;          // (features), starts as 1
  Buffer& num_batches_tracked;  // 0-d, i64: steps in training mode

 private:
  BatchNorm2dOptions options_;
};

}  // namespace lockstep::nn
