#include "lockstep/nn/layers/sequence_layers.h"

#include "lockstep/autograd/ops/functions.h"
#include "lockstep/base/check_internal.h"
#include "lockstep/nn/layers/layer_parts_internal.h"

namespace lockstep::nn {
namespace {

// The shape of a weight whose first dimension are channels `first`, and the second channels `second` of a group.
Shape sequence_weight(const char* layer, std::int64_t first, std::int64_t second, std::int64_t kernel,
                      std::int64_t groups) {
  LOCKSTEP_CHECK(
      first >= 1 && second >= 1 && kernel >= 1 && groups >= 1 && first % groups == 0 && second % groups == 0,
      "{}: channels {} and {}, kernel {}, {} groups; expected positive numbers, and groups that divide the channels",
      layer, first, second, kernel, groups);
  return {first, second / groups, kernel};
}

// Runs `operation` on sequences (n, channels, length), or (channels, length), as images of height 1.
template <class F>
Tensor as_images(const char* layer, const Tensor& x, F operation) {
  LOCKSTEP_CHECK(x.dim() == 2 || x.dim() == 3, "{}: x is {}, expected (n, channels, length) or (channels, length)",
                 layer, describe(x));
  return operation(x.unsqueeze(-2)).squeeze(-2);
}

}  // namespace

Conv1d::Conv1d(std::int64_t in, std::int64_t out, std::int64_t kernel, const Conv1dOptions& options)
    : weight(add_parameter("weight", uniform_by_fan_in(sequence_weight("Conv1d", out, in, kernel, options.groups),
                                                       in / options.groups * kernel))),
      bias(add_parameter("bias", options.bias ? uniform_by_fan_in({out}, in / options.groups * kernel) : Tensor())),
      options_(options) {}

Tensor Conv1d::forward(const Tensor& x) const {
  const Conv1dOptions& o = options_;
  return as_images("Conv1d", x, [&](const Tensor& images) {
    return conv2d(images, weight->unsqueeze(2), bias, {1, o.stride}, {0, o.padding}, {1, o.dilation}, o.groups);
  });
}

ConvTranspose1d::ConvTranspose1d(std::int64_t in, std::int64_t out, std::int64_t kernel,
                                 const ConvTranspose1dOptions& options)
    : weight(
          add_parameter("weight", uniform_by_fan_in(sequence_weight("ConvTranspose1d", in, out, kernel, options.groups),
                                                    out / options.groups * kernel))),
      bias(add_parameter("bias", options.bias ? uniform_by_fan_in({out}, out / options.groups * kernel) : Tensor())),
      options_(options) {}

Tensor ConvTranspose1d::forward(const Tensor& x) const {
  const ConvTranspose1dOptions& o = options_;
  return as_images("ConvTranspose1d", x, [&](const Tensor& images) {
    return conv_transpose2d(images, weight->unsqueeze(2), bias, {1, o.stride}, {0, o.padding}, {0, o.output_padding},
                            o.groups, {1, o.dilation});
  });
}

Tensor MaxPool1d::forward(const Tensor& x) const {
  const MaxPool1dOptions& o = options_;
  return as_images("MaxPool1d", x, [&](const Tensor& images) {
    return max_pool2d(images, {1, kernel_}, {1, o.stride ? o.stride : kernel_}, {0, o.padding}, {1, o.dilation},
                      o.ceil_mode);
  });
}

Tensor AvgPool1d::forward(const Tensor& x) const {
  const AvgPool1dOptions& o = options_;
  return as_images("AvgPool1d", x, [&](const Tensor& images) {
    return avg_pool2d(images, {1, kernel_}, {1, o.stride ? o.stride : kernel_}, {0, o.padding}, o.ceil_mode,
                      o.count_include_pad);
  });
}

}  // namespace lockstep::nn
