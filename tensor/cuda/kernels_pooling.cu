// Pooling: one thread per element of the result. Gradients are gathered from the windows that contain an element, so
// that results are deterministic.
#include <limits>

#include "lockstep/tensor/cuda/divisor_internal.h"
#include "lockstep/tensor/cuda/launch_internal.h"
#include "lockstep/tensor/kernels/for_dtype_internal.h"
#include "lockstep/tensor/ops/image_ops_internal.h"

namespace lockstep::LOCKSTEP_KERNELS {

namespace {

using raw::Windows;

struct Span {
  std::int64_t first, last;  // last: one past the end
};

// One side (height or width) of the windows.
struct Side {
  std::int64_t input, output, kernel, stride, padding, dilation;
  Divisor by_input{input}, by_output{output}, by_stride{stride}, by_dilation{dilation};

  // The elements of window `place`, `dilation` apart.
  HOST_DEVICE Span seen_by(std::int64_t place) const {
    const std::int64_t start = place * stride - padding, end = start + (kernel - 1) * dilation + 1;
    return {start < 0 ? start + by_dilation.divide(dilation - 1 - start).whole * dilation : start,
            end < input ? end : input};
  }
  // The windows around element `at`: all that contain it, and with a dilation also others.
  HOST_DEVICE Span seeing(std::int64_t at) const {
    const std::int64_t from = at + padding - (kernel - 1) * dilation, last = by_stride.divide(at + padding).whole + 1;
    return {from <= 0 ? 0 : by_stride.divide(from + stride - 1).whole, last < output ? last : output};
  }
  // The number of elements of window `place`, in the image or also in the padding around it. Without dilation.
  HOST_DEVICE std::int64_t counted(std::int64_t place, bool with_padding) const {
    const Span seen = seen_by(place);
    const std::int64_t left = input + 2 * padding - place * stride;
    if (with_padding) return kernel < left ? kernel : left;
    return seen.last - seen.first;
  }
};

struct Sides {
  Side y, x;
  explicit Sides(const Windows& w)
      : y{w.input.height, w.output.height, w.kernel.height, w.stride.height, w.padding.height, w.dilation.height},
        x{w.input.width, w.output.width, w.kernel.width, w.stride.width, w.padding.width, w.dilation.width} {}
  std::int64_t inputs() const { return y.input * x.input; }
  std::int64_t outputs() const { return y.output * x.output; }

  // The position of element or window `i` among all planes.
  struct Place {
    std::int64_t plane, row, column;
  };
  HOST_DEVICE static Place place(std::int64_t i, const Divisor& height, const Divisor& width) {
    const Quotient row = width.divide(i), plane = height.divide(row.whole);
    return {plane.whole, plane.rest, row.rest};
  }
  HOST_DEVICE Place input(std::int64_t i) const { return place(i, y.by_input, x.by_input); }
  HOST_DEVICE Place output(std::int64_t i) const { return place(i, y.by_output, x.by_output); }

  // The divisor of a window's sum.
  HOST_DEVICE std::int64_t divisor(std::int64_t row, std::int64_t column, bool count_include_pad) const {
    return y.counted(row, count_include_pad) * x.counted(column, count_include_pad);
  }
};

template <class T>
struct MaxPool {
  const T* in;
  T* out;
  std::int64_t* index;
  Sides sides;
  DEVICE_ONLY void operator()(std::int64_t i) const {
    const Sides::Place at = sides.output(i);
    const Span rows = sides.y.seen_by(at.row), columns = sides.x.seen_by(at.column);
    const T* const plane = in + at.plane * sides.y.input * sides.x.input;
    T best = -std::numeric_limits<T>::infinity();
    std::int64_t where = rows.first * sides.x.input + columns.first;
    for (std::int64_t r = rows.first; r < rows.last; r += sides.y.dilation) {
      for (std::int64_t c = columns.first; c < columns.last; c += sides.x.dilation) {
        const T value = plane[r * sides.x.input + c];
        if (!(value > best) && value == value) continue;  // NaN counts as the largest
        best = value;
        where = r * sides.x.input + c;
      }
    }
    out[i] = best;
    index[i] = where;
  }
};

template <class T>
struct MaxPoolBackward {
  const T* grad;
  const std::int64_t* index;
  T* out;
  Sides sides;
  DEVICE_ONLY void operator()(std::int64_t i) const {
    const Sides::Place at = sides.input(i);
    const Span rows = sides.y.seeing(at.row), columns = sides.x.seeing(at.column);
    const std::int64_t plane = at.plane * sides.y.output * sides.x.output, own = at.row * sides.x.input + at.column;
    T total = 0;
    for (std::int64_t r = rows.first; r < rows.last; ++r) {
      for (std::int64_t c = columns.first; c < columns.last; ++c) {
        const std::int64_t window = plane + r * sides.x.output + c;
        if (index[window] == own) total += grad[window];
      }
    }
    out[i] = total;
  }
};

template <class T>
struct AvgPool {
  const T* in;
  T* out;
  Sides sides;
  bool count_include_pad;
  DEVICE_ONLY void operator()(std::int64_t i) const {
    const Sides::Place at = sides.output(i);
    const Span rows = sides.y.seen_by(at.row), columns = sides.x.seen_by(at.column);
    const T* const plane = in + at.plane * sides.y.input * sides.x.input;
    T total = 0;
    for (std::int64_t r = rows.first; r < rows.last; ++r) {
      for (std::int64_t c = columns.first; c < columns.last; ++c) total += plane[r * sides.x.input + c];
    }
    out[i] = total / static_cast<T>(sides.divisor(at.row, at.column, count_include_pad));
  }
};

template <class T>
struct AvgPoolBackward {
  const T* grad;
  T* out;
  Sides sides;
  bool count_include_pad;
  DEVICE_ONLY void operator()(std::int64_t i) const {
    const Sides::Place at = sides.input(i);
    const Span rows = sides.y.seeing(at.row), columns = sides.x.seeing(at.column);
    const T* const plane = grad + at.plane * sides.y.output * sides.x.output;
    T total = 0;
    for (std::int64_t r = rows.first; r < rows.last; ++r) {
      for (std::int64_t c = columns.first; c < columns.last; ++c)
        total += plane[r * sides.x.output + c] / static_cast<T>(sides.divisor(r, c, count_include_pad));
    }
    out[i] = total;
  }
};

}  // namespace

void max_pool2d(const Windows& w, const void* x, void* out, std::int64_t* index, std::int64_t planes, DType dtype) {
  const Sides sides(w);
  for_float(dtype, [&]<class T>(T) {
    launch_elements("max_pool2d", planes * sides.outputs(),
                    MaxPool<T>{static_cast<const T*>(x), static_cast<T*>(out), index, sides});
  });
}

void max_pool2d_backward(const Windows& w, const void* grad, const std::int64_t* index, void* out, std::int64_t planes,
                         DType dtype) {
  const Sides sides(w);
  for_float(dtype, [&]<class T>(T) {
    launch_elements("max_pool2d backward", planes * sides.inputs(),
                    MaxPoolBackward<T>{static_cast<const T*>(grad), index, static_cast<T*>(out), sides});
  });
}

void avg_pool2d(const Windows& w, const void* x, void* out, std::int64_t planes, DType dtype, bool count_include_pad) {
  const Sides sides(w);
  for_float(dtype, [&]<class T>(T) {
    launch_elements("avg_pool2d", planes * sides.outputs(),
                    AvgPool<T>{static_cast<const T*>(x), static_cast<T*>(out), sides, count_include_pad});
  });
}

void avg_pool2d_backward(const Windows& w, const void* grad, void* out, std::int64_t planes, DType dtype,
                         bool count_include_pad) {
  const Sides sides(w);
  for_float(dtype, [&]<class T>(T) {
    launch_elements("avg_pool2d backward", planes * sides.inputs(),
                    AvgPoolBackward<T>{static_cast<const T*>(grad), static_cast<T*>(out), sides, count_include_pad});
  });
}

}  // namespace lockstep::LOCKSTEP_KERNELS
