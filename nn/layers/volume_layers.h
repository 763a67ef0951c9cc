/// \file
/// Convolution of volumes (n, channels, depth, height, width). Names, defaults and initialisation are PyTorch's.
#pragma once

#include <cstdint>

#include "lockstep/nn/module.h"
#include "lockstep/tensor/size2d.h"

namespace lockstep::nn {

/// A depth, a height and a width. One number means all three, as in `.padding = 1`; three are written in braces.
struct Size3d {
  /// Equal depth, height and width.
  constexpr Size3d(std::int64_t all) : depth(all), plane(all) {}  // NOLINT: implicit
  constexpr Size3d(std::int64_t d, std::int64_t h, std::int64_t w) : depth(d), plane(h, w) {}

  std::int64_t depth;  ///< in voxels
  Size2d plane;        ///< height and width
};

struct Conv3dOptions {
  Size3d stride = 1;        ///< distance between windows
  Size3d padding = 0;       ///< zeros added on each side
  Size3d dilation = 1;      ///< distance between the elements of a window
  std::int64_t groups = 1;  ///< output channels depend only on the input channels of their group
  bool bias = true;         ///< adds a learned bias to each channel
};

/// y = cross-correlation of x with weight, + bias. x (n, in, d, h, w) or (in, d, h, w) -> (n, out, d', h', w'), with the
/// sizes of Conv2d. weight (out, in / groups, kernel) and bias (out), both from U(-1/sqrt(f), 1/sqrt(f)) with f = in /
/// groups times the kernel's elements. Computed by one conv2d, whose input has each plane once for every window in which
/// it lies. Throws InvalidArgument as conv2d, and for a depth below the kernel's.
class Conv3d : public Module {
 public:
  Conv3d(std::int64_t in, std::int64_t out, const Size3d& kernel, const Conv3dOptions& options = {});
  Tensor forward(const Tensor& x) const override;

  Parameter& weight;  ///< (out, in / groups, kernel)
  Parameter& bias;    ///< (out); an undefined tensor if `.bias` is false

 private:
  Conv3dOptions options_;
};

}  // namespace lockstep::nn
