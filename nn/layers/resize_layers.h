/// \file
/// Layers that enlarge, resize or rearrange images (batch, channels, height, width). Names, defaults and initialisation
/// are PyTorch's.
#pragma once

#include <cstdint>
#include <optional>

#include "lockstep/nn/module.h"
#include "lockstep/tensor/size2d.h"

namespace lockstep::nn {

struct ConvTranspose2dOptions {
  Size2d stride = 1;          ///< distance between the windows of the output
  Size2d padding = 0;         ///< rows and columns that are removed on each side of the output
  Size2d output_padding = 0;  ///< rows and columns that are added at the bottom and the right; below the stride
  std::int64_t groups = 1;    ///< output channels depend only on the input channels of their group
  bool bias = true;           ///< adds a learned bias to each channel
  Size2d dilation = 1;        ///< distance between the elements of a window
};

/// y = conv_transpose2d(x, weight, bias): x (n, in, h, w) -> (n, out, h', w') with h' = (h - 1) stride - 2 padding +
/// dilation (kernel - 1) + output_padding + 1. weight (in, out / groups, kernel) and bias (out), both from
/// U(-1/sqrt(f), 1/sqrt(f)) with f = out / groups kernel.height kernel.width.
class ConvTranspose2d : public Module {
 public:
  ConvTranspose2d(std::int64_t in, std::int64_t out, const Size2d& kernel, const ConvTranspose2dOptions& options = {});
  Tensor forward(const Tensor& x) const override;

  Parameter& weight;  ///< (in, out / groups, kernel)
  Parameter& bias;    ///< (out); an undefined tensor if `.bias` is false

 private:
  ConvTranspose2dOptions options_;
};

/// The mean over windows that cover the image evenly: (n, c, h, w) -> (n, c, output_size), also of a single image
/// (c, h, w). Window i of h' begins at floor(i h / h') and ends before ceil((i + 1) h / h').
class AdaptiveAvgPool2d : public Module {
 public:
  explicit AdaptiveAvgPool2d(const Size2d& output_size);
  Tensor forward(const Tensor& x) const override;

 private:
  Size2d size_;
};

/// How interpolate computes an element: from the nearest one, or linearly from four.
enum class UpsampleMode : std::uint8_t { kNearest, kBilinear };

struct UpsampleOptions {
  std::optional<Size2d> size = std::nullopt;          ///< height and width of the result, or:
  std::optional<double> scale_factor = std::nullopt;  ///< factor of height and width
  UpsampleMode mode = UpsampleMode::kNearest;         ///< kNearest or kBilinear
  bool align_corners = false;                         ///< kBilinear: corner elements keep their values
};

/// Resizes images (n, c, h, w) -> (n, c, h', w'), with h' = floor(scale_factor h). Neighbours of the result are
/// 1 / scale_factor apart in x, or h / h' for `size`; a dimension whose size stays the same is copied, and kNearest
/// repeats each element where h' = 2 h, as in PyTorch. Throws InvalidArgument unless exactly one of size and
/// scale_factor is given, and for align_corners with kNearest.
Tensor interpolate(const Tensor& x, const UpsampleOptions& options);

/// interpolate(x, options)
class Upsample : public Module {
 public:
  explicit Upsample(const UpsampleOptions& options) : options_(options) {}
  Tensor forward(const Tensor& x) const override { return interpolate(x, options_); }

 private:
  UpsampleOptions options_;
};

struct UnfoldOptions {
  Size2d dilation = 1;  ///< distance between the elements of a window
  Size2d padding = 0;   ///< zeros added on each side
  Size2d stride = 1;    ///< distance between windows
};

/// The windows of an image as columns (im2col): (n, c, h, w) -> (n, c kernel.height kernel.width, number of windows). A
/// single image (c, h, w) gives (c kernel.height kernel.width, number of windows).
class Unfold : public Module {
 public:
  explicit Unfold(const Size2d& kernel, const UnfoldOptions& options = {}) : kernel_(kernel), options_(options) {}
  Tensor forward(const Tensor& x) const override;

 private:
  Size2d kernel_;
  UnfoldOptions options_;
};

}  // namespace lockstep::nn
