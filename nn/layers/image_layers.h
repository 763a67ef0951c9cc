/// \file
/// Layers for images (batch, channels, height, width). Names, defaults and initialisation are PyTorch's. A Size2d is
/// one number for both dimensions, or {height, width}.
#pragma once

#include <cstdint>
#include <optional>

#include "lockstep/nn/module.h"
#include "lockstep/tensor/size2d.h"

namespace lockstep::nn {

/// Padding by name. kValid: none. kSame: outputs have the size of the inputs; only for stride 1. If the zeros are odd in
/// number, the bottom and the right side get one more than the top and the left side.
enum class Padding : std::uint8_t { kValid, kSame };

/// The padding of a convolution: `.padding = 1`, `.padding = {1, 2}` or `.padding = Padding::kSame`.
class Conv2dPadding {
 public:
  Conv2dPadding(std::int64_t both) : size_(both) {}               // NOLINT: implicit
  Conv2dPadding(std::int64_t h, std::int64_t w) : size_(h, w) {}  ///< height and width
  Conv2dPadding(const Size2d& size) : size_(size) {}              // NOLINT: implicit
  Conv2dPadding(Padding mode) : same_(mode == Padding::kSame) {}  // NOLINT: implicit
  bool is_same() const { return same_; }                          ///< whether it is Padding::kSame
  const Size2d& size() const { return size_; }                    ///< zeros added on each side

 private:
  Size2d size_ = 0;
  bool same_ = false;
};

struct Conv2dOptions {
  Size2d stride = 1;          ///< distance between windows
  Conv2dPadding padding = 0;  ///< zeros added on each side
  Size2d dilation = 1;        ///< distance between the elements of a window
  std::int64_t groups = 1;    ///< output channels depend only on the input channels of their group
  bool bias = true;           ///< adds a learned bias to each channel
};

/// y = cross-correlation of x with weight, + bias. x (n, in, h, w) -> (n, out, h', w') with h' = floor((h + 2 padding -
/// dilation (kernel - 1) - 1) / stride) + 1. weight (out, in / groups, kernel) and bias (out), both from U(-1/sqrt(f),
/// 1/sqrt(f)) with f = in / groups kernel.height kernel.width. Padding::kSame gives h' = h and w' = w; throws
/// InvalidArgument for another stride than 1.
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

}  // namespace lockstep::nn
