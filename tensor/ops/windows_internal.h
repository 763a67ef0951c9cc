// Window geometry and checks that convolution and pooling share.
#pragma once

#include "lockstep/tensor/ops/image_ops_internal.h"
#include "lockstep/tensor/ops/wrappers_internal.h"

namespace lockstep::raw {

inline std::string text(const Size2d& size) { return fmt::format("{} x {}", size.height, size.width); }

inline constexpr std::int64_t kMostSize = 1 << 30;  // so that a product of two sizes does not overflow

inline void require_sizes(const char* op, const char* name, const Size2d& size, std::int64_t least) {
  LOCKSTEP_CHECK(size.height >= least && size.width >= least && size.height <= kMostSize && size.width <= kMostSize,
                 "{}: {} is {}, expected {} to {}", op, name, text(size), least, kMostSize);
}

inline void require_picture(const char* op, const Tensor& x) {
  if (!is_half(x.dtype())) require_float(op, x);
  LOCKSTEP_CHECK(x.dim() == 4, "{}: x must be (images, channels, height, width) or (channels, height, width), got {}",
                 op, describe(x));
}

// The number of windows along a side; `room` is the distance from the first window to the last possible one. ceil_mode
// adds one more, cut off, if it begins inside the `input` elements or the padding before them.
inline std::int64_t windows_along(std::int64_t room, std::int64_t stride, std::int64_t input, std::int64_t padding,
                                  bool ceil_mode) {
  if (!ceil_mode) return room / stride + 1;
  const std::int64_t count = (room + stride - 1) / stride + 1;
  return (count - 1) * stride >= input + padding ? count - 1 : count;
}

// The windows of `kernel` over x's images. Throws if the kernel does not fit.
inline Windows windows_over(const char* op, const Tensor& x, const Size2d& kernel, const Size2d& stride,
                            const Size2d& padding, const Size2d& dilation, bool ceil_mode = false) {
  require_sizes(op, "the kernel", kernel, 1);
  require_sizes(op, "the stride", stride, 1);
  require_sizes(op, "the padding", padding, 0);
  require_sizes(op, "the dilation", dilation, 1);
  const Size2d input(x.size(2), x.size(3));
  const Size2d room(input.height + 2 * padding.height - dilation.height * (kernel.height - 1) - 1,
                    input.width + 2 * padding.width - dilation.width * (kernel.width - 1) - 1);
  const Size2d over = ceil_mode ? Size2d(stride.height - 1, stride.width - 1) : Size2d(0, 0);
  LOCKSTEP_CHECK(room.height + over.height >= 0 && room.width + over.width >= 0,
                 "{}: a kernel of {} (dilation {}) does not fit into x, which is {}, with padding {}", op, text(kernel),
                 text(dilation), describe(x), text(padding));
  return {.input = input,
          .output = {windows_along(room.height, stride.height, input.height, padding.height, ceil_mode),
                     windows_along(room.width, stride.width, input.width, padding.width, ceil_mode)},
          .kernel = kernel,
          .stride = stride,
          .padding = padding,
          .dilation = dilation};
}

}  // namespace lockstep::raw
