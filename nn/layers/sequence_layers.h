/// \file
/// Convolutions and pooling of sequences (n, channels, length). Names, defaults and initialisation are PyTorch's.
#pragma once

#include <cstdint>

#include "lockstep/nn/module.h"

namespace lockstep::nn {

struct Conv1dOptions {
  std::int64_t stride = 1;    ///< distance between windows
  std::int64_t padding = 0;   ///< zeros added on each side
  std::int64_t dilation = 1;  ///< distance between the elements of a window
  std::int64_t groups = 1;    ///< output channels depend only on the input channels of their group
  bool bias = true;           ///< adds a learned bias to each channel
};

/// y = cross-correlation of x with weight, + bias: a Conv2d of height 1. x (n, in, length) or (in, length) -> (n, out,
/// length'), length' = floor((length + 2 padding - dilation (kernel - 1) - 1) / stride) + 1. weight (out, in / groups,
/// kernel) and bias (out), both from U(-1/sqrt(f), 1/sqrt(f)) with f = in / groups kernel.
class Conv1d : public Module {
 public:
  Conv1d(std::int64_t in, std::int64_t out, std::int64_t kernel, const Conv1dOptions& options = {});
  Tensor forward(const Tensor& x) const override;

  Parameter& weight;  ///< (out, in / groups, kernel)
  Parameter& bias;    ///< (out); an undefined tensor if `.bias` is false

 private:
  Conv1dOptions options_;
};

struct ConvTranspose1dOptions {
  std::int64_t stride = 1;          ///< distance between the windows of the output
  std::int64_t padding = 0;         ///< elements that are removed on each side of the output
  std::int64_t output_padding = 0;  ///< elements that are added at the end; below the stride
  std::int64_t groups = 1;          ///< output channels depend only on the input channels of their group
  bool bias = true;                 ///< adds a learned bias to each channel
  std::int64_t dilation = 1;        ///< distance between the elements of a window
};

/// A ConvTranspose2d of height 1: x (n, in, length) or (in, length) -> (n, out, length'), length' = (length - 1) stride - 2
/// padding + dilation (kernel - 1) + output_padding + 1. weight (in, out / groups, kernel) and bias (out), both from
/// U(-1/sqrt(f), 1/sqrt(f)) with f = out / groups kernel. Throws InvalidArgument as Conv1d and conv_transpose2d.
class ConvTranspose1d : public Module {
 public:
  ConvTranspose1d(std::int64_t in, std::int64_t out, std::int64_t kernel, const ConvTranspose1dOptions& options = {});
  Tensor forward(const Tensor& x) const override;

  Parameter& weight;  ///< (in, out / groups, kernel)
  Parameter& bias;    ///< (out); an undefined tensor if `.bias` is false

 private:
  ConvTranspose1dOptions options_;
};

struct MaxPool1dOptions {
  std::int64_t stride = 0;    ///< 0: the kernel's size
  std::int64_t padding = 0;   ///< at most half the kernel; counts as -infinity
  std::int64_t dilation = 1;  ///< distance between the elements of a window
  bool ceil_mode = false;     ///< a last window may reach past the end
};

/// The largest element of each window: (n, c, length) -> (n, c, length'). Sizes are those of MaxPool2d.
class MaxPool1d : public Module {
 public:
  explicit MaxPool1d(std::int64_t kernel, const MaxPool1dOptions& options = {}) : kernel_(kernel), options_(options) {}
  Tensor forward(const Tensor& x) const override;

 private:
  std::int64_t kernel_;
  MaxPool1dOptions options_;
};

struct AvgPool1dOptions {
  std::int64_t stride = 0;        ///< 0: the kernel's size
  std::int64_t padding = 0;       ///< zeros added on each side
  bool ceil_mode = false;         ///< a last window may reach past the end; elements past the end never count
  bool count_include_pad = true;  ///< padding counts as zeros; if false, not at all
};

/// The mean of each window: (n, c, length) -> (n, c, length'). Sizes are those of AvgPool2d.
class AvgPool1d : public Module {
 public:
  explicit AvgPool1d(std::int64_t kernel, const AvgPool1dOptions& options = {}) : kernel_(kernel), options_(options) {}
  Tensor forward(const Tensor& x) const override;

 private:
  std::int64_t kernel_;
  AvgPool1dOptions options_;
};

}  // namespace lockstep::nn
