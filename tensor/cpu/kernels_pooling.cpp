// Pooling, a plane at a time: row by row of windows, element by element of the kernel, so that the inner loop runs along
// a row.
#include "lockstep/tensor/level_internal.h"

#include <algorithm>
#include <limits>

#include "lockstep/tensor/cpu/planes.h"

namespace lockstep::inline LOCKSTEP_ABI::LOCKSTEP_KERNELS {

namespace {

using raw::Windows;

std::int64_t input_size(const Windows& w) { return w.input.height * w.input.width; }
std::int64_t output_size(const Windows& w) { return w.output.height * w.output.width; }

// Calls body(pixel, range) for each element of the kernel that windows of `row` see: window `place` of the range sees the
// picture's element pixel + place stride.width.
template <class F>
void for_kernel(const Windows& w, std::int64_t row, F body) {
  for (std::int64_t i = 0; i < w.kernel.height; ++i) {
    const std::int64_t y = row * w.stride.height - w.padding.height + i;
    if (y < 0 || y >= w.input.height) continue;
    for (std::int64_t j = 0; j < w.kernel.width; ++j) {
      const std::int64_t shift = j - w.padding.width;
      body(y * w.input.width + shift, places_inside(w.input.width, w.output.width, w.stride.width, shift));
    }
  }
}

template <class T>
void largest_of_row(const Windows& w, const T* x, std::int64_t row, T* best, std::int64_t* index) {
  const std::int64_t top = std::max<std::int64_t>(row * w.stride.height - w.padding.height, 0) * w.input.width;
  for (std::int64_t place = 0; place < w.output.width; ++place) {
    best[place] = -std::numeric_limits<T>::infinity();
    index[place] = top + std::max<std::int64_t>(place * w.stride.width - w.padding.width, 0);
  }
  for_kernel(w, row, [&](std::int64_t pixel, const Range& range) {
    for (std::int64_t place = range.first; place < range.last; ++place) {
      const std::int64_t at = pixel + place * w.stride.width;
      const bool better = (x[at] > best[place]) | (x[at] != x[at]);
      best[place] = better ? x[at] : best[place];
      index[place] = better ? at : index[place];
    }
  });
}

// What the sum of a window is divided by.
template <class T>
class Divisor {
 public:
  Divisor(const Windows& w, bool count_include_pad) : w_(w), include_pad_(count_include_pad) {}
  T of(std::int64_t row, std::int64_t place) const {
    if (include_pad_) return static_cast<T>(w_.kernel.height * w_.kernel.width);
    return static_cast<T>(seen(row * w_.stride.height - w_.padding.height, w_.kernel.height, w_.input.height) *
                          seen(place * w_.stride.width - w_.padding.width, w_.kernel.width, w_.input.width));
  }

 private:
  static std::int64_t seen(std::int64_t start, std::int64_t kernel, std::int64_t input) {
    return std::min(start + kernel, input) - std::max<std::int64_t>(start, 0);
  }
  Windows w_;
  bool include_pad_;
};

}  // namespace

void max_pool2d(const Windows& w, const void* x, void* out, std::int64_t* index, std::int64_t planes, DType dtype) {
  for_float(dtype, [&]<class T>(T) {
    for_planes(planes, input_size(w), [&](std::int64_t plane) {
      const T* const from = static_cast<const T*>(x) + plane * input_size(w);
      for (std::int64_t row = 0; row < w.output.height; ++row) {
        const std::int64_t to = plane * output_size(w) + row * w.output.width;
        largest_of_row(w, from, row, static_cast<T*>(out) + to, index + to);
      }
    });
  });
}

void max_pool2d_backward(const Windows& w, const void* grad, const std::int64_t* index, void* out, std::int64_t planes,
                         DType dtype) {
  for_float(dtype, [&]<class T>(T) {
    for_planes(planes, input_size(w), [&](std::int64_t plane) {
      const T* const g = static_cast<const T*>(grad) + plane * output_size(w);
      const std::int64_t* const chosen = index + plane * output_size(w);
      T* const to = static_cast<T*>(out) + plane * input_size(w);
      std::fill(to, to + input_size(w), T(0));
      for (std::int64_t i = 0; i < output_size(w); ++i) to[chosen[i]] += g[i];
    });
  });
}

void avg_pool2d(const Windows& w, const void* x, void* out, std::int64_t planes, DType dtype, bool count_include_pad) {
  for_float(dtype, [&]<class T>(T) {
    const Divisor<T> divisor(w, count_include_pad);
    for_planes(planes, input_size(w), [&](std::int64_t plane) {
      const T* const from = static_cast<const T*>(x) + plane * input_size(w);
      for (std::int64_t row = 0; row < w.output.height; ++row) {
        T* const to = static_cast<T*>(out) + plane * output_size(w) + row * w.output.width;
        std::fill(to, to + w.output.width, T(0));
        for_kernel(w, row, [&](std::int64_t pixel, const Range& range) {
          for (std::int64_t place = range.first; place < range.last; ++place)
            to[place] += from[pixel + place * w.stride.width];
        });
        for (std::int64_t place = 0; place < w.output.width; ++place) to[place] /= divisor.of(row, place);
      }
    });
  });
}

void avg_pool2d_backward(const Windows& w, const void* grad, void* out, std::int64_t planes, DType dtype,
                         bool count_include_pad) {
  for_float(dtype, [&]<class T>(T) {
    const Divisor<T> divisor(w, count_include_pad);
    for_planes(planes, input_size(w), [&](std::int64_t plane) {
      T* const to = static_cast<T*>(out) + plane * input_size(w);
      std::fill(to, to + input_size(w), T(0));
      for (std::int64_t row = 0; row < w.output.height; ++row) {
        const T* const g = static_cast<const T*>(grad) + plane * output_size(w) + row * w.output.width;
        for_kernel(w, row, [&](std::int64_t pixel, const Range& range) {
          for (std::int64_t place = range.first; place < range.last; ++place)
            to[pixel + place * w.stride.width] += g[place] / divisor.of(row, place);
        });
      }
    });
  });
}

}  // namespace lockstep::inline LOCKSTEP_ABI::LOCKSTEP_KERNELS
