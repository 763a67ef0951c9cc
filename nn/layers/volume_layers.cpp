#include "lockstep/nn/layers/volume_layers.h"

#include <vector>

#include "lockstep/autograd/ops/creation.h"
#include "lockstep/autograd/ops/functions.h"
#include "lockstep/base/check_internal.h"
#include "lockstep/nn/layers/layer_parts_internal.h"

namespace lockstep::nn {
namespace {

Shape volume_weight(std::int64_t in, std::int64_t out, const Size3d& kernel, const Conv3dOptions& o) {
  LOCKSTEP_CHECK(in >= 1 && out >= 1 && o.groups >= 1 && in % o.groups == 0 && out % o.groups == 0,
                 "Conv3d: in {}, out {}, {} groups; expected positive numbers, and groups that divide the channels", in,
                 out, o.groups);
  LOCKSTEP_CHECK(
      kernel.depth >= 1 && kernel.plane.height >= 1 && kernel.plane.width >= 1 && o.stride.depth >= 1 &&
          o.dilation.depth >= 1 && o.padding.depth >= 0,
      "Conv3d: the depth of kernel, stride, dilation and padding is {}, {}, {} and {}, the kernel's plane {} x {}; "
      "expected at least 1, and a padding of at least 0",
      kernel.depth, o.stride.depth, o.dilation.depth, o.padding.depth, kernel.plane.height, kernel.plane.width);
  return {out, in / o.groups, kernel.depth, kernel.plane.height, kernel.plane.width};
}

std::int64_t fan_in_of_volume(const Shape& weight) { return weight[1] * weight[2] * weight[3] * weight[4]; }

// The planes of every window: position [k, i] of the result is k dilation + i stride.
Tensor planes_of_windows(std::int64_t kernel, std::int64_t windows, const Conv3dOptions& o, Device device) {
  std::vector<std::int64_t> planes;
  for (std::int64_t k = 0; k < kernel; ++k) {
    for (std::int64_t i = 0; i < windows; ++i) planes.push_back(k * o.dilation.depth + i * o.stride.depth);
  }
  return tensor(planes).to(device);
}

}  // namespace

Conv3d::Conv3d(std::int64_t in, std::int64_t out, const Size3d& kernel, const Conv3dOptions& options)
    : weight(add_parameter("weight", uniform_by_fan_in(volume_weight(in, out, kernel, options),
                                                       fan_in_of_volume(volume_weight(in, out, kernel, options))))),
      bias(
          add_parameter("bias", options.bias ? uniform_by_fan_in({out}, fan_in_of_volume(weight->shape())) : Tensor())),
      options_(options) {}

// The planes of a window along the depth become channels of a plane: (n d', in kernel, h, w).
Tensor Conv3d::forward(const Tensor& x) const {
  const Conv3dOptions& o = options_;
  if (x.dim() == 4) return forward(x.unsqueeze(0)).squeeze(0);
  LOCKSTEP_CHECK(x.dim() == 5 && x.size(1) == weight->size(1) * o.groups,
                 "Conv3d: x is {}, expected (n, {}, depth, height, width), or without n", describe(x),
                 weight->size(1) * o.groups);
  const std::int64_t kernel = weight->size(2), reach = o.dilation.depth * (kernel - 1) + 1,
                     depth = x.size(2) + 2 * o.padding.depth, windows = (depth - reach) / o.stride.depth + 1;
  LOCKSTEP_CHECK(depth >= reach, "Conv3d: x is {}, of depth {} with the padding; the kernel covers {}", describe(x),
                 depth, reach);
  const Tensor padded = o.padding.depth > 0 ? pad(x, {0, 0, 0, 0, o.padding.depth, o.padding.depth}) : x;
  const std::int64_t n = x.size(0), channels = x.size(1), height = x.size(3), width = x.size(4);
  const Tensor planes = index_select(padded, 2, planes_of_windows(kernel, windows, o, x.device()))
                            .reshape({n, channels, kernel, windows, height, width})
                            .permute({0, 3, 1, 2, 4, 5})
                            .reshape({n * windows, channels * kernel, height, width});
  const Tensor y =
      conv2d(planes, weight->flatten(1, 2), bias, o.stride.plane, o.padding.plane, o.dilation.plane, o.groups);
  return y.reshape({n, windows, y.size(1), y.size(2), y.size(3)}).transpose(1, 2);
}

}  // namespace lockstep::nn
