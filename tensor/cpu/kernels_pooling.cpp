// Pooling, one plane at a time: for each row of windows and each element of the kernel, the inner loop runs along a
// row.
#include "lockstep/tensor/kernels/level_internal.h"

#include <algorithm>
#include <limits>

#include "lockstep/tensor/cpu/packets_internal.h"
#include "lockstep/tensor/cpu/planes_internal.h"
#include "lockstep/tensor/ops/image_ops_internal.h"

namespace lockstep::LOCKSTEP_KERNELS {

namespace {

using raw::Windows;

std::int64_t input_size(const Windows& w) { return w.input.height * w.input.width; }
std::int64_t output_size(const Windows& w) { return w.output.height * w.output.width; }

// Calls body(pixel, range) for each element of the kernel in the windows of `row`: window `place` of the range
// contains the image's element pixel + place stride.width.
template <class F>
void for_kernel(const Windows& w, std::int64_t row, F body) {
  for (std::int64_t i = 0; i < w.kernel.height; ++i) {
    const std::int64_t y = row * w.stride.height - w.padding.height + i * w.dilation.height;
    if (y < 0 || y >= w.input.height) continue;
    for (std::int64_t j = 0; j < w.kernel.width; ++j) {
      const std::int64_t shift = j * w.dilation.width - w.padding.width;
      body(y * w.input.width + shift, places_inside(w.input.width, w.output.width, w.stride.width, shift));
    }
  }
}

// The largest elements of `count` windows of a row, the first of them at `begin`, and their indices in the plane.
template <class T>
void largest_of_tile(const Windows& w, const T* x, std::int64_t row, std::int64_t begin, std::int64_t count, T* out,
                     std::int64_t* index) {
  alignas(64) T best[kTile], value[kTile];
  alignas(64) std::int32_t where[kTile];  // large enough for a plane (the wrapper checks), and as wide as f32
  const std::int64_t top = first_seen(row * w.stride.height - w.padding.height, w.dilation.height);
  for (std::int64_t p = 0; p < count; ++p) {
    const std::int64_t left = first_seen((begin + p) * w.stride.width - w.padding.width, w.dilation.width);
    best[p] = -std::numeric_limits<T>::infinity();
    where[p] = static_cast<std::int32_t>(top * w.input.width + left);
  }
  const auto step = static_cast<std::int32_t>(w.stride.width);
  for_kernel(w, row, [&](std::int64_t pixel, const Range& range) {
    const auto first = static_cast<std::int32_t>(std::max(range.first - begin, std::int64_t{0}));
    const auto end = static_cast<std::int32_t>(std::min(range.end - begin, count));
    const std::int64_t start = pixel + begin * w.stride.width;
    for (std::int32_t p = first; p < end; ++p) value[p] = x[start + p * w.stride.width];
    for (std::int32_t p = first; p < end; ++p) {  // without branches, which would be unpredictable
      const bool better = (value[p] > best[p]) | (value[p] != value[p]);
      best[p] = better ? value[p] : best[p];
      where[p] = better ? static_cast<std::int32_t>(start) + p * step : where[p];
    }
  });
  for (std::int64_t p = 0; p < count; ++p) out[p] = best[p];
  for (std::int64_t p = 0; p < count; ++p) index[p] = where[p];
}

// The divisor of a window's sum: its elements in the image, or also in the padding around it.
template <class T>
class Divisor {
 public:
  Divisor(const Windows& w, bool count_include_pad) : w_(w), include_pad_(count_include_pad) {}
  T of(std::int64_t row, std::int64_t place) const {
    return static_cast<T>(
        counted(row * w_.stride.height - w_.padding.height, w_.kernel.height, w_.input.height, w_.padding.height) *
        counted(place * w_.stride.width - w_.padding.width, w_.kernel.width, w_.input.width, w_.padding.width));
  }

 private:
  std::int64_t counted(std::int64_t start, std::int64_t kernel, std::int64_t input, std::int64_t padding) const {
    return include_pad_ ? std::min(kernel, input + padding - start)
                        : std::min(start + kernel, input) - std::max<std::int64_t>(start, 0);
  }
  Windows w_;
  bool include_pad_;
};

}  // namespace

void max_pool2d(const Windows& w, const void* x, void* out, std::int64_t* index, std::int64_t planes, DType dtype) {
  for_float(dtype, [&]<class T>(T) {
    for_units(planes, input_size(w), [&](std::int64_t plane) {
      const T* const from = as<T>(x) + plane * input_size(w);
      for (std::int64_t row = 0; row < w.output.height; ++row) {
        for (std::int64_t begin = 0; begin < w.output.width; begin += kTile) {
          const std::int64_t to = plane * output_size(w) + row * w.output.width + begin;
          largest_of_tile(w, from, row, begin, std::min(kTile, w.output.width - begin), as<T>(out) + to, index + to);
        }
      }
    });
  });
}

void max_pool2d_backward(const Windows& w, const void* grad, const std::int64_t* index, void* out, std::int64_t planes,
                         DType dtype) {
  for_float(dtype, [&]<class T>(T) {
    for_units(planes, input_size(w), [&](std::int64_t plane) {
      const T* const g = as<T>(grad) + plane * output_size(w);
      const std::int64_t* const chosen = index + plane * output_size(w);
      T* const to = as<T>(out) + plane * input_size(w);
      std::fill(to, to + input_size(w), T(0));
      for (std::int64_t i = 0; i < output_size(w); ++i) to[chosen[i]] += g[i];
    });
  });
}

namespace {

// One row of windows. `Sum` is the type in which windows are summed, a tile of them at a time.
template <class Sum, class T>
void average_row(const Windows& w, const T* x, std::int64_t row, const Divisor<T>& divisor, T* out) {
  for (std::int64_t begin = 0; begin < w.output.width; begin += kTile) {
    const std::int64_t count = std::min(kTile, w.output.width - begin);
    Sum sums[kTile];
    std::fill(sums, sums + count, Sum(0));
    for_kernel(w, row, [&](std::int64_t pixel, const Range& range) {
      const std::int64_t first = std::max(range.first - begin, std::int64_t{0});
      const std::int64_t end = std::min(range.end - begin, count), start = pixel + begin * w.stride.width;
      for (std::int64_t p = first; p < end; ++p) sums[p] += static_cast<Sum>(x[start + p * w.stride.width]);
    });
    for (std::int64_t p = 0; p < count; ++p)
      out[begin + p] = static_cast<T>(sums[p] / static_cast<Sum>(divisor.of(row, begin + p)));
  }
}

}  // namespace

void avg_pool2d(const Windows& w, const void* x, void* out, std::int64_t planes, DType dtype, bool count_include_pad) {
  for_float(dtype, [&]<class T>(T) {
    const Divisor<T> divisor(w, count_include_pad);
    const auto run = [&]<class Sum>(Sum) {
      for_units(planes, input_size(w), [&](std::int64_t plane) {
        const T* const from = as<T>(x) + plane * input_size(w);
        T* const to = as<T>(out) + plane * output_size(w);
        for (std::int64_t row = 0; row < w.output.height; ++row)
          average_row<Sum>(w, from, row, divisor, to + row * w.output.width);
      });
    };
    w.kernel.height* w.kernel.width > kRowsBetween ? run(double{}) : run(T{});  // rounding errors stay small
  });
}

void avg_pool2d_backward(const Windows& w, const void* grad, void* out, std::int64_t planes, DType dtype,
                         bool count_include_pad) {
  for_float(dtype, [&]<class T>(T) {
    const Divisor<T> divisor(w, count_include_pad);
    for_units(planes, input_size(w), [&](std::int64_t plane) {
      T* const to = as<T>(out) + plane * input_size(w);
      std::fill(to, to + input_size(w), T(0));
      for (std::int64_t row = 0; row < w.output.height; ++row) {
        const T* const g = as<T>(grad) + plane * output_size(w) + row * w.output.width;
        for_kernel(w, row, [&](std::int64_t pixel, const Range& range) {
          for (std::int64_t place = range.first; place < range.end; ++place)
            to[pixel + place * w.stride.width] += g[place] / divisor.of(row, place);
        });
      }
    });
  });
}

}  // namespace lockstep::LOCKSTEP_KERNELS
