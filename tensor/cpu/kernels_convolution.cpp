// Convolution as matrix products (im2col): the elements of each window become a column, a tile of columns at a time.
//
// Tiles and shares depend on the shapes alone, and products have the same bits for any number of threads (gemm), so
// results do, too; oneDNN's own convolution does not guarantee that.
#include "lockstep/tensor/kernels/level_internal.h"

#include <algorithm>

#include "lockstep/tensor/cpu/planes_internal.h"
#include "lockstep/tensor/ops/image_ops_internal.h"

namespace lockstep::LOCKSTEP_KERNELS {

namespace {

using raw::Convolution;
using raw::ConvolutionPass;
using raw::Windows;

constexpr std::int64_t kTileElements = 1 << 16;  // elements of a tile: it fits the second-level cache
constexpr std::int64_t kLeastPositions = 64;     // minimum columns of a tile: narrower products are slow
constexpr std::int64_t kMostShares = 32;         // shares of the work; each has its own tile
constexpr std::int64_t kPartials = 1 << 22;      // elements of all shares' weight gradients
constexpr std::int64_t kShareFrom = 1 << 20;     // minimum multiplications for several threads
constexpr std::int64_t kAlign = 16;              // elements: parts of the workspace are aligned to 64 bytes

std::int64_t aligned(std::int64_t elements) { return (elements + kAlign - 1) / kAlign * kAlign; }

// The partition of a convolution: `units` in `shares`; a share computes its units in order.
struct Plan {
  Plan(const Convolution& c, ConvolutionPass pass)
      : inputs(c.in * c.windows.kernel.height * c.windows.kernel.width),
        positions(c.windows.output.height * c.windows.output.width),
        pixels(c.windows.input.height * c.windows.input.width),
        width(std::min(positions, std::max(kLeastPositions, kTileElements / inputs))),
        tiles((positions + width - 1) / width), weights(c.groups * c.out * inputs),
        column_room(aligned(inputs * width)) {
    units = c.images * c.groups * (pass == ConvolutionPass::kForward ? tiles : 1);
    shares = std::min(units, kMostShares);
    room = column_room;
    if (pass != ConvolutionPass::kBackwardWeight) return;
    units = c.images;
    shares = std::min({units, kMostShares, std::max<std::int64_t>(kPartials / weights, 1)});
    room += aligned(weights) + aligned(c.out * inputs);
  }
  // Calls body(unit, the share's workspace) for all units, on several threads if worthwhile.
  template <class T, class F>
  void run(void* workspace, F body) const {
    const auto share = [&](std::int64_t s) {
      T* const own = as<T>(workspace) + s * room;
      for (std::int64_t unit = s * units / shares; unit < (s + 1) * units / shares; ++unit) body(unit, s, own);
    };
    if (shares > 1 && units * weights * width >= kShareFrom)
      for_chunks(shares, share);
    else
      for (std::int64_t s = 0; s < shares; ++s) share(s);
  }

  std::int64_t inputs;     // elements of one window
  std::int64_t positions;  // windows of an image
  std::int64_t pixels;     // elements of one channel of x
  std::int64_t width;      // columns of one tile
  std::int64_t tiles;      // tiles of an image
  std::int64_t weights, column_room;
  std::int64_t units = 0, shares = 0, room = 0;  // room: workspace of one share, in elements
};

// Calls body(column, pixel, count) for the runs of windows [begin, begin + width) that lie in one row and in which the
// kernel's element (i, j) is inside the image. `pixel` is the first window's index in the channel; the next ones are
// stride.width apart.
template <class F>
void for_runs(const Windows& w, std::int64_t i, std::int64_t j, std::int64_t begin, std::int64_t width, F body) {
  const std::int64_t shift = j * w.dilation.width - w.padding.width, step = w.stride.width;
  const Range inside = places_inside(w.input.width, w.output.width, step, shift);
  for (std::int64_t at = begin; at < begin + width;) {
    const std::int64_t row = at / w.output.width, place = at % w.output.width;
    const std::int64_t end = std::min(w.output.width, place + begin + width - at);  // end of the row in the tile
    const std::int64_t y = row * w.stride.height - w.padding.height + i * w.dilation.height;
    const std::int64_t from = std::max(place, inside.first), to = std::min(end, inside.last);
    if (y >= 0 && y < w.input.height && from < to)
      body(at - begin + from - place, y * w.input.width + from * step + shift, to - from);
    at += end - place;
  }
}

// Calls body(row of the columns, channel, i, j) for every element of a window.
template <class F>
void for_window(const Convolution& c, F body) {
  std::int64_t row = 0;
  for (std::int64_t channel = 0; channel < c.in; ++channel) {
    for (std::int64_t i = 0; i < c.windows.kernel.height; ++i) {
      for (std::int64_t j = 0; j < c.windows.kernel.width; ++j) body(row++, channel, i, j);
    }
  }
}

// columns (inputs, width) = the elements of windows [begin, begin + width) in the channels at x.
template <class T>
void gather_columns(const Convolution& c, const Plan& plan, const T* x, std::int64_t begin, std::int64_t width,
                    T* columns) {
  const std::int64_t step = c.windows.stride.width;
  for_window(c, [&](std::int64_t row, std::int64_t channel, std::int64_t i, std::int64_t j) {
    T* const to = columns + row * width;
    const T* const from = x + channel * plan.pixels;
    std::fill(to, to + width, T(0));
    for_runs(c.windows, i, j, begin, width, [&](std::int64_t column, std::int64_t pixel, std::int64_t count) {
      if (step == 1) {
        std::copy(from + pixel, from + pixel + count, to + column);
      } else {
        for (std::int64_t k = 0; k < count; ++k) to[column + k] = from[pixel + k * step];
      }
    });
  });
}

// The reverse: adds the columns to the channels at x.
template <class T>
void add_columns(const Convolution& c, const Plan& plan, const T* columns, std::int64_t begin, std::int64_t width,
                 T* x) {
  const std::int64_t step = c.windows.stride.width;
  for_window(c, [&](std::int64_t row, std::int64_t channel, std::int64_t i, std::int64_t j) {
    const T* const from = columns + row * width;
    T* const to = x + channel * plan.pixels;
    for_runs(c.windows, i, j, begin, width, [&](std::int64_t column, std::int64_t pixel, std::int64_t count) {
      if (step == 1) {
        for (std::int64_t k = 0; k < count; ++k) to[pixel + k] += from[column + k];
      } else {
        for (std::int64_t k = 0; k < count; ++k) to[pixel + k * step] += from[column + k];
      }
    });
  });
}

Matrix matrix(const void* data, std::int64_t row, std::int64_t column) {
  return {const_cast<void*>(data), row, column};
}

// Calls body(begin, width) for the tiles of an image.
template <class F>
void for_tiles(const Plan& plan, F body) {
  for (std::int64_t begin = 0; begin < plan.positions; begin += plan.width)
    body(begin, std::min(plan.width, plan.positions - begin));
}

}  // namespace

void conv2d_workspace(const Convolution& c, ConvolutionPass pass, std::int64_t* elements) {
  const Plan plan(c, pass);
  *elements = plan.shares * plan.room;
}

void conv2d(const Convolution& c, const void* x, const void* weight, const void* bias, void* out, void* workspace,
            DType dtype) {
  const Plan plan(c, ConvolutionPass::kForward);
  for_float(dtype, [&]<class T>(T) {
    plan.run<T>(workspace, [&](std::int64_t unit, std::int64_t, T* columns) {
      const std::int64_t tile = unit % plan.tiles, block = unit / plan.tiles, group = block % c.groups;
      const std::int64_t begin = tile * plan.width, width = std::min(plan.width, plan.positions - begin);
      gather_columns(c, plan, as<T>(x) + block * c.in * plan.pixels, begin, width, columns);
      T* const to = as<T>(out) + block * c.out * plan.positions + begin;
      gemm({.m = c.out,
            .n = width,
            .k = plan.inputs,
            .a = matrix(as<T>(weight) + group * c.out * plan.inputs, plan.inputs, 1),
            .b = matrix(columns, width, 1),
            .out = {to, plan.positions, 1}},
           dtype);
      for (std::int64_t o = 0; bias && o < c.out; ++o) {
        const T shift = as<T>(bias)[group * c.out + o];
        for (std::int64_t k = 0; k < width; ++k) to[o * plan.positions + k] += shift;
      }
    });
  });
}

// An image's gradient is the sum over its tiles, in order.
void conv2d_backward_input(const Convolution& c, const void* grad, const void* weight, void* out, void* workspace,
                           DType dtype) {
  const Plan plan(c, ConvolutionPass::kBackwardInput);
  for_float(dtype, [&]<class T>(T) {
    plan.run<T>(workspace, [&](std::int64_t block, std::int64_t, T* columns) {
      const T* const of_group = as<T>(weight) + block % c.groups * c.out * plan.inputs;
      T* const to = as<T>(out) + block * c.in * plan.pixels;
      std::fill(to, to + c.in * plan.pixels, T(0));
      for_tiles(plan, [&](std::int64_t begin, std::int64_t width) {
        gemm({.m = plan.inputs,
              .n = width,
              .k = c.out,
              .a = matrix(of_group, 1, plan.inputs),
              .b = matrix(as<T>(grad) + block * c.out * plan.positions + begin, plan.positions, 1),
              .out = {columns, width, 1}},
             dtype);
        add_columns(c, plan, columns, begin, width, to);
      });
    });
  });
}

// Each share sums over its images, in order; then the shares are added, in order.
void conv2d_backward_weight(const Convolution& c, const void* grad, const void* x, void* out, void* workspace,
                            DType dtype) {
  const Plan plan(c, ConvolutionPass::kBackwardWeight);
  const std::int64_t of_group = c.out * plan.inputs;
  for_float(dtype, [&]<class T>(T) {
    const auto total_of = [&](std::int64_t share) { return as<T>(workspace) + share * plan.room + plan.column_room; };
    for (std::int64_t share = 0; share < plan.shares; ++share)
      std::fill(total_of(share), total_of(share) + plan.weights, T(0));
    plan.run<T>(workspace, [&](std::int64_t image, std::int64_t share, T* columns) {
      T* const product = columns + plan.column_room + aligned(plan.weights);
      for (std::int64_t group = 0; group < c.groups; ++group) {
        const std::int64_t block = image * c.groups + group;
        T* const total = total_of(share) + group * of_group;
        for_tiles(plan, [&](std::int64_t begin, std::int64_t width) {
          gather_columns(c, plan, as<T>(x) + block * c.in * plan.pixels, begin, width, columns);
          gemm({.m = c.out,
                .n = plan.inputs,
                .k = width,
                .a = matrix(as<T>(grad) + block * c.out * plan.positions + begin, plan.positions, 1),
                .b = matrix(columns, 1, width),
                .out = {product, plan.inputs, 1}},
               dtype);
          for (std::int64_t i = 0; i < of_group; ++i) total[i] += product[i];
        });
      }
    });
    T* const result = as<T>(out);
    std::copy(total_of(0), total_of(0) + plan.weights, result);
    for (std::int64_t share = 1; share < plan.shares; ++share) {
      const T* const total = total_of(share);
      for (std::int64_t i = 0; i < plan.weights; ++i) result[i] += total[i];
    }
  });
}

}  // namespace lockstep::LOCKSTEP_KERNELS
