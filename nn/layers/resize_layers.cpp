#include "lockstep/nn/layers/resize_layers.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "lockstep/autograd/ops/autocast_internal.h"
#include "lockstep/autograd/ops/creation.h"
#include "lockstep/autograd/ops/functions.h"
#include "lockstep/base/check_internal.h"
#include "lockstep/nn/layers/layer_parts_internal.h"

namespace lockstep::nn {
namespace {

Shape transposed_weight(std::int64_t in, std::int64_t out, const Size2d& kernel, std::int64_t groups) {
  LOCKSTEP_CHECK(
      in >= 1 && out >= 1 && kernel.height >= 1 && kernel.width >= 1 && groups >= 1 && in % groups == 0 &&
          out % groups == 0,
      "ConvTranspose2d: in {}, out {}, kernel {} x {}, {} groups; expected positive numbers, and groups that "
      "divide the channels",
      in, out, kernel.height, kernel.width, groups);
  return {in, out / groups, kernel.height, kernel.width};
}

void require_images(const char* op, const Tensor& x) {
  LOCKSTEP_CHECK(x.dim() == 4 && x.is_floating_point() && x.size(2) >= 1 && x.size(3) >= 1,
                 "{}: x is {}, expected floating-point images (n, c, height, width){}", op, describe(x),
                 x.is_floating_point() ? "" : "; convert x with .to(kFloat32)");
}

// Runs `operation` on images (n, c, height, width), or on a single one (c, height, width).
template <class F>
Tensor on_images(const char* op, const Tensor& x, F operation) {
  if (x.dim() == 3) return on_images(op, x.unsqueeze(0), operation).squeeze(0);
  require_images(op, x);
  return operation(x);
}

// (out, in): row i averages the elements of window i.
Tensor averages(std::int64_t in, std::int64_t out, const Tensor& like) {
  std::vector<double> rows(static_cast<std::size_t>(in * out));
  for (std::int64_t i = 0; i < out; ++i) {
    const std::int64_t begin = i * in / out, end = ((i + 1) * in + out - 1) / out;
    std::fill(rows.begin() + i * in + begin, rows.begin() + i * in + end, 1 / static_cast<double>(end - begin));
  }
  return tensor(rows, {.dtype = like.dtype()}).view({out, in}).to(like.device());
}

// One dimension of an interpolation: result[i] = x[first[i]] (1 - weight[i]) + x[second[i]] weight[i].
struct Taps {
  std::vector<std::int64_t> first, second;
  std::vector<double> weight;
};

// `scale` is the distance of neighbours of the result in the input.
Taps taps(std::int64_t in, std::int64_t out, double scale, const UpsampleOptions& options) {
  Taps t;
  for (std::int64_t i = 0; i < out; ++i) {
    const auto at = static_cast<double>(i);
    double source = static_cast<float>(i) * static_cast<float>(scale);  // in f32, as PyTorch chooses the nearest
    if (options.mode == UpsampleMode::kBilinear)
      source = options.align_corners ? (out > 1 ? at * static_cast<double>(in - 1) / static_cast<double>(out - 1) : 0)
                                     : std::max(0.0, (at + 0.5) * scale - 0.5);
    const std::int64_t low = std::min(static_cast<std::int64_t>(source), in - 1);
    t.first.push_back(low);
    t.second.push_back(std::min(low + 1, in - 1));
    t.weight.push_back(source - static_cast<double>(low));
  }
  return t;
}

// PyTorch copies a dimension that keeps its size, and repeats each element where kNearest doubles the size, whatever the
// scale: floor(3 * 1.2) is 3, and floor(3 * 2.3) is 6.
Tensor resized(const Tensor& x, std::int64_t dim, std::int64_t out, double scale, const UpsampleOptions& options) {
  if (out == x.size(dim)) return x;
  if (options.mode == UpsampleMode::kNearest && out == 2 * x.size(dim)) scale = 0.5;
  const Taps t = taps(x.size(dim), out, scale, options);
  const auto rows = [&](const std::vector<std::int64_t>& index) {
    return index_select(x, dim, tensor(index).to(x.device()));
  };
  const Tensor first = rows(t.first);
  if (options.mode == UpsampleMode::kNearest) return first;
  Tensor weight = tensor(t.weight, {.dtype = x.dtype()}).to(x.device());
  if (dim == 2) weight = weight.unsqueeze(1);
  return first + (rows(t.second) - first) * weight;
}

}  // namespace

ConvTranspose2d::ConvTranspose2d(std::int64_t in, std::int64_t out, const Size2d& kernel,
                                 const ConvTranspose2dOptions& options)
    : weight(add_parameter("weight", uniform_by_fan_in(transposed_weight(in, out, kernel, options.groups),
                                                       out / options.groups * kernel.height * kernel.width))),
      bias(add_parameter("bias", options.bias
                                     ? uniform_by_fan_in({out}, out / options.groups * kernel.height * kernel.width)
                                     : Tensor())),
      options_(options) {}

Tensor ConvTranspose2d::forward(const Tensor& x) const {
  const ConvTranspose2dOptions& o = options_;
  return conv_transpose2d(x, weight, bias, o.stride, o.padding, o.output_padding, o.groups, o.dilation);
}

AdaptiveAvgPool2d::AdaptiveAvgPool2d(const Size2d& output_size) : size_(output_size) {
  LOCKSTEP_CHECK(size_.height >= 1 && size_.width >= 1, "AdaptiveAvgPool2d: output_size is {} x {}, expected 1 or more",
                 size_.height, size_.width);
}

Tensor AdaptiveAvgPool2d::forward(const Tensor& x) const {
  return on_images("AdaptiveAvgPool2d", x, [this](const Tensor& images) {
    const std::int64_t height = images.size(2), width = images.size(3);
    if (height % size_.height == 0 && width % size_.width == 0)
      return avg_pool2d(images, {height / size_.height, width / size_.width});
    const Tensor wide = in_f32(images);
    return matmul(averages(height, size_.height, wide), matmul(wide, averages(width, size_.width, wide).t()))
        .to(images.dtype());
  });
}

Tensor interpolate(const Tensor& x, const UpsampleOptions& options) {
  require_images("interpolate", x);
  LOCKSTEP_CHECK(options.size.has_value() != options.scale_factor.has_value(),
                 "interpolate: expected one of size and scale_factor, got {}", options.size ? "both" : "neither");
  LOCKSTEP_CHECK(!options.align_corners || options.mode == UpsampleMode::kBilinear,
                 "interpolate: align_corners has no meaning for kNearest");
  if (is_half(x.dtype())) return interpolate(in_f32(x), options).to(x.dtype());
  const double factor = options.scale_factor.value_or(1);
  const auto scaled = [&](std::int64_t size) {
    return static_cast<std::int64_t>(std::min(0x1p59, static_cast<double>(size) * factor));  // no tensor is as large
  };
  const Size2d size = options.size.value_or(Size2d(scaled(x.size(2)), scaled(x.size(3))));
  LOCKSTEP_CHECK(size.height >= 1 && size.width >= 1, "interpolate: the result would be {} x {}: x is {}, factor {}",
                 size.height, size.width, describe(x), factor);
  const auto step = [&](std::int64_t in, std::int64_t out) {
    return options.size ? static_cast<double>(in) / static_cast<double>(out) : 1 / factor;
  };
  checked_numel("interpolate", {x.size(0), x.size(1), size.height, size.width});
  if (size.height == x.size(2) && size.width == x.size(3)) return x.clone();
  const Tensor rows = resized(x, 2, size.height, step(x.size(2), size.height), options);
  return resized(rows, 3, size.width, step(x.size(3), size.width), options);
}

// A depthwise convolution whose kernels each select one element of the window.
Tensor Unfold::forward(const Tensor& x) const {
  return on_images("Unfold", x, [this](const Tensor& images) {
    const std::int64_t elements = kernel_.height * kernel_.width, channels = images.size(1);
    const Tensor select = eye(elements, {.dtype = images.dtype(), .device = images.device()})
                              .view({elements, 1, kernel_.height, kernel_.width})
                              .repeat({channels, 1, 1, 1});
    return conv2d(images, select, {}, options_.stride, options_.padding, options_.dilation, channels).flatten(2);
  });
}

}  // namespace lockstep::nn
