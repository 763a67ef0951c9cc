// The gradient of a convolution's weight: products of rows with rows, or, for large channels of small images, with panels.
#include <algorithm>
#include <vector>

#include "lockstep/tensor/cpu/convolution_products_internal.h"
#include "lockstep/tensor/cpu/loops_internal.h"
#include "lockstep/tensor/kernels/level_internal.h"

namespace lockstep::LOCKSTEP_KERNELS {

using namespace convolution;

namespace {

// total (c.out, inputs) += the products of the copies of `count` images: of gradients, whose columns past the end of a row
// are zeros, and of x; kDotColumns at a time, so that no lane adds more terms in sequence.
template <class T>
void add_dots(const Plan& plan, const std::vector<std::int64_t>& offsets, const T* x, const T* grad, std::int64_t count,
              std::int64_t columns, T* total) {
  const std::int64_t outs = plan.c.out;
  for (std::int64_t o = 0; o < outs; o += kDotLeft<T>) {
    for (std::int64_t p = 0; p < plan.inputs; p += kDotRight<T>) {
      for (std::int64_t q = 0; q < columns; q += kDotColumns) {
        DotBlock<T> block;
        for (std::int64_t image = 0; image < count; ++image) {  // rows past the last one repeat it
          const T *left[kDotLeft<T>], *right[kDotRight<T>];
          for (int i = 0; i < kDotLeft<T>; ++i)
            left[i] = grad + image * plan.copy_of_grad + std::min(o + i, outs - 1) * columns + q;
          for (int j = 0; j < kDotRight<T>; ++j)
            right[j] = x + image * plan.copy + offsets[static_cast<std::size_t>(std::min(p + j, plan.inputs - 1))] + q;
          block.add(left, right, std::min(kDotColumns, columns - q));
        }
        for (int i = 0; i < kDotLeft<T> && o + i < outs; ++i) {
          for (int j = 0; j < kDotRight<T> && p + j < plan.inputs; ++j)
            total[(o + i) * plan.inputs + p + j] += block.sum(i, j);
        }
      }
    }
  }
}

// Copies a channel of a part of x; zeros, which its last row shares, follow the last channel.
template <class T>
void copy_channel(const Part& part, std::int64_t channel, const T* x, T* copies) {
  const Plan& plan = part.plan;
  const PaddedRows rows{part.begin, plan.rows + plan.h.reach(), plan.row};
  const std::int64_t size = plan.planes * rows.rows * rows.row, channels = plan.c.in;
  part.for_images([&](std::int64_t each, std::int64_t block) {
    T* const copy = copies + each * plan.copy;
    rows.copy_input(plan.h, plan.w, x + (block * channels + channel) * plan.pixels, copy + channel * size);
    if (channel == channels - 1) std::fill(copy + channels * size, copy + plan.copy, T(0));
  });
}

// The pass for the weight as products with panels: of a unit's gradient, packed, and the elements of its windows, which are
// gathered across rows of x. Units add to the result, in order; threads share the elements of the windows.
template <class T>
class GatheredWeight {
 public:
  GatheredWeight(const Plan& of, const std::vector<std::int64_t>& offsets_of, const T* gradient, const T* input,
                 T* work, T* result)
      : plan(of), c(of.c), offsets(offsets_of), grad(gradient), x(input), packed(work), copies(work + of.packed),
        panels(copies + of.together * of.copy), out(result) {}

  void run() const {
    std::fill(out, out + plan.weights, T(0));
    for (std::int64_t unit = 0; unit < plan.units; ++unit) {
      const Part part(plan, unit);
      plan.share(c.in, [&](std::int64_t channel) { copy_channel(part, channel, x, copies); });
      plan.share(blocks(), [&](std::int64_t block) { pack(part, block); });
      plan.share(up(plan.inputs, plan.range), [&](std::int64_t range) { add_range(part, range); });
    }
  }

 private:
  std::int64_t terms_of(const Part& part) const { return part.images * part.rows * plan.places; }
  std::int64_t blocks() const { return up(c.out, kPanelRows<T>); }
  std::int64_t row_of(std::int64_t block) const { return block * c.out / blocks(); }

  void pack(const Part& part, std::int64_t block) const {
    const std::int64_t first = row_of(block), n = row_of(block + 1) - first;
    for (std::int64_t o = 0; o < n; ++o) {
      T* to = packed + first * terms_of(part) + o;
      part.for_images([&](std::int64_t, std::int64_t of_image) {
        const T* const from = grad + (of_image * c.out + first + o) * plan.positions + part.begin * plan.places;
        for (std::int64_t q = 0; q < part.rows * plan.places; ++q, to += n) *to = from[q];
      });
    }
  }
  void add_range(const Part& part, std::int64_t range) const {
    const std::int64_t room = aligned(c.out * kPanel<float>) + kDepth * kPanel<float>;
    T *const tile = panels + range * room, *const panel = tile + aligned(c.out * kPanel<float>);
    const std::int64_t terms = terms_of(part), last = std::min(plan.inputs, (range + 1) * plan.range);
    T* const to = out + part.group * c.out * plan.inputs;
    for (std::int64_t element = range * plan.range; element < last; element += kPanel<T>) {
      const std::int64_t count = std::min<std::int64_t>(kPanel<T>, last - element);
      for (std::int64_t q = 0; q < terms; q += kDepth) {
        const std::int64_t length = std::min(kDepth, terms - q);
        for (std::int64_t k = 0; k < count; ++k)
          gather(part, offsets[static_cast<std::size_t>(element + k)], q, length, panel + k);
        for (std::int64_t block = 0; block < blocks(); ++block) {
          const std::int64_t first = row_of(block), n = row_of(block + 1) - first;
          panel_block_of<Operands::kPacked, T>(n, count)(packed + first * terms + q * n, 0, panel,
                                                         kPanelOffsets[sizeof(T) == sizeof(double)].data(), length,
                                                         q > 0, tile + first * kPanel<T>, kPanel<T>);
        }
      }
      for (std::int64_t o = 0; o < c.out; ++o) {
        for (std::int64_t k = 0; k < count; ++k) to[o * plan.inputs + element + k] += tile[o * kPanel<T> + k];
      }
    }
  }
  // One column of a panel: the places [q, q + count) of an element of the windows.
  void gather(const Part& part, std::int64_t offset, std::int64_t q, std::int64_t count, T* to) const {
    std::int64_t u = q % plan.places, t = q / plan.places % part.rows, n = q / plan.places / part.rows;
    for (std::int64_t run = 0; count > 0; count -= run, u = 0) {
      run = std::min(plan.places - u, count);
      const T* const from = copies + n * plan.copy + offset + t * plan.row + u;
      for (std::int64_t k = 0; k < run; ++k, to += kPanel<T>) *to = from[k];
      if (++t == part.rows) t = 0, ++n;
    }
  }

  const Plan& plan;
  const Convolution& c;
  const std::vector<std::int64_t>& offsets;
  const T *grad, *x;
  T *packed, *copies, *panels, *out;
};

// The pass for the weight of 3 x 3 windows with the channels of the gradient in the lanes of registers: a block is the sums
// over the places of an image for the windows of one channel of x. Units add to the sums, in order; threads share the
// channels of x.
template <class T>
class LaneWeight {
 public:
  LaneWeight(const Plan& of, const T* gradient, const T* input, T* work, T* result)
      : plan(of), c(of.c), grad(gradient), x(input), sums(work), copies(work + of.packed),
        packed(copies + of.together * of.copy), out(result) {
    for (std::int64_t t = 0; t < plan.rows; ++t) {
      for (std::int64_t u = 0; u < plan.places; ++u) places.push_back(t * plan.row + u);
    }
  }

  void run() const {
    const std::int64_t blocks = up(c.out, kWide);
    // body(the first element of a block of weights, its channels)
    const auto for_blocks = [&](auto body) {
      plan.share(c.groups * blocks, [&](std::int64_t block) {
        const std::int64_t o = block % blocks * kWide;
        body((block / blocks * c.out + o) * plan.inputs, width(o));
      });
    };
    for_blocks([&](std::int64_t first, std::int64_t n) { std::fill_n(sums + first, n * plan.inputs, T(0)); });
    for (std::int64_t unit = 0; unit < plan.units; ++unit) {
      const Part part(plan, unit);
      plan.share(c.in, [&](std::int64_t channel) { copy_channel(part, channel, x, copies); });
      plan.share(blocks, [&](std::int64_t block) { pack(part, block * kWide); });
      plan.share(up(c.in, kChannels), [&](std::int64_t group) { add(part, group * kChannels); });
    }
    for_blocks([&](std::int64_t first, std::int64_t n) {
      out_of_lanes(sums + first, n, plan.inputs, static_cast<const T*>(nullptr), out + first, plan.inputs);
    });
  }

 private:
  static constexpr std::int64_t kWindow = 9,
                                kChannels = 8;  // elements of a window; channels that share a block of grad
  static constexpr std::int64_t kWide = sizeof(Register<T>) == 64 ? kPanel<T> : kLanes<T>;  // channels of a block

  std::int64_t width(std::int64_t o) const { return std::min(kWide, c.out - o); }
  // The packed gradient of the block of channel o, for one image of a part.
  T* packed_of(const Part& part, std::int64_t o, std::int64_t image) const {
    return packed + (o * part.images + image * width(o)) * part.rows * plan.places;
  }
  void pack(const Part& part, std::int64_t o) const {
    part.for_images([&](std::int64_t each, std::int64_t block) {
      into_lanes(grad + (block * c.out + o) * plan.positions + part.begin * plan.places, plan.positions, width(o),
                 part.rows * plan.places, packed_of(part, o, each));
    });
  }
  void add(const Part& part, std::int64_t first) const {
    const std::int64_t plane = (plan.rows + plan.h.reach()) * plan.row, count = part.rows * plan.places;
    for (std::int64_t o = 0; o < c.out; o += kWide) {
      T* const to = sums + (part.group * c.out + o) * plan.inputs;
      for (std::int64_t image = 0; image < part.images; ++image) {
        const T* const right = packed_of(part, o, image);
        for (std::int64_t channel = first; channel < std::min(first + kChannels, c.in); ++channel) {
          for (std::int64_t q = 0; q < count; q += kDepth)
            panel_block_of<Operands::kWindow, T>(kWindow, width(o))(
                copies + image * plan.copy + channel * plane, plan.row, right + q * width(o), places.data() + q,
                std::min(kDepth, count - q), /*add=*/true, to + channel * kWindow * width(o), width(o));
        }
      }
    }
  }

  const Plan& plan;
  const Convolution& c;
  const T *grad, *x;
  T *sums, *copies, *packed, *out;
  std::vector<std::int64_t> places;  // of a part, in a copy
};

}  // namespace

// Each share sums over its units, in order; then the shares are added, in order.
void conv2d_backward_weight(const Convolution& c, const void* grad, const void* x, void* out, void* workspace,
                            DType dtype) {
  const Plan plan(c, ConvolutionPass::kBackwardWeight);
  std::vector<std::int64_t> offsets;
  for_window(plan, [&](std::int64_t, std::int64_t channel, std::int64_t i, std::int64_t j) {
    offsets.push_back(offset_of(plan, plan.rows, channel, i, j));
  });
  const std::int64_t columns = plan.columns_of(plan.rows),
                     channel_of_copy = plan.planes * (plan.rows + plan.h.reach()) * plan.row;
  for_float(dtype, [&]<class T>(T) {
    if (plan.lanes) {
      LaneWeight<T>(plan, as<T>(grad), as<T>(x), as<T>(workspace), as<T>(out)).run();
      return;
    }
    if (plan.gathered) {
      GatheredWeight<T>(plan, offsets, as<T>(grad), as<T>(x), as<T>(workspace), as<T>(out)).run();
      return;
    }
    const auto total_of = [&](std::int64_t share) { return as<T>(workspace) + share * plan.room; };
    for (std::int64_t share = 0; share < plan.shares; ++share)
      std::fill(total_of(share), total_of(share) + plan.weights, T(0));
    plan.run([&](std::int64_t unit, std::int64_t share) {
      const Part part(plan, unit);
      T* const of_x = total_of(share) + aligned(plan.weights);
      T* const of_grad = of_x + plan.together * plan.copy;
      part.for_images([&](std::int64_t each, std::int64_t block) {
        part.copy_channels(as<T>(x), block, channel_of_copy, of_x + each * plan.copy);
        for (std::int64_t o = 0; o < c.out; ++o) {
          T* const row = of_grad + each * plan.copy_of_grad + o * columns;
          PaddedRows{part.begin, part.rows, plan.row}.copy_gradient(
              plan.h, plan.w, 0, 0, as<T>(grad) + (block * c.out + o) * plan.positions, row);
          std::fill(row + part.rows * plan.row, row + columns, T(0));
        }
      });
      add_dots(plan, offsets, of_x, of_grad, part.images, columns, total_of(share) + part.group * c.out * plan.inputs);
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
