// Convolution, and the gradient of its input.
#include <algorithm>
#include <vector>

#include "lockstep/tensor/cpu/convolution_products_internal.h"
#include "lockstep/tensor/cpu/loops_internal.h"
#include "lockstep/tensor/kernels/level_internal.h"

namespace lockstep::LOCKSTEP_KERNELS {

using namespace convolution;

void conv2d_workspace(const Convolution& c, ConvolutionPass pass, std::int64_t* elements) {
  *elements = Plan(c, pass).workspace();
}

void conv2d(const Convolution& c, const void* x, const void* weight, const void* bias, void* out, void* workspace,
            DType dtype) {
  const Plan plan(c, ConvolutionPass::kForward);
  Weights left{c.out, {}, plan.inputs, {}};
  for_window(plan, [&](std::int64_t element, std::int64_t channel, std::int64_t i, std::int64_t j) {
    left.add(element, offset_of(plan, plan.rows, channel, i, j));
  });
  const std::int64_t of_group = c.out * plan.inputs;
  for_float(dtype, [&]<class T>(T) {
    T* const packed = as<T>(workspace);
    for (std::int64_t group = 0; plan.lanes && group < c.groups; ++group) {
      const std::int64_t first = group * of_group;
      for_parts(plan.inputs, c.out, [&](std::int64_t begin, std::int64_t end) {
        left.pack_lanes(begin, end, as<T>(weight) + first, packed + first);
      });
    }
    plan.run([&](std::int64_t unit, std::int64_t share) {
      const Part part(plan, unit);
      T* const copies = packed + plan.packed + share * plan.room;
      const std::int64_t plane = plan.planes * (plan.rows + plan.h.reach()) * plan.row;
      part.for_images([&](std::int64_t each, std::int64_t block) {
        part.copy_channels(as<T>(x), block, plane, copies + each * plan.copy);
      });
      const Columns columns = part.columns({0, part.rows}, {0, plan.w.output}, part.begin, 1, 0, 1, plan.w.output,
                                           plan.positions, c.groups * c.out * plan.positions);
      T* const to = as<T>(out) + part.first_block() * c.out * plan.positions;
      const T* const weights = plan.lanes ? packed : as<T>(weight);
      part.multiply<false>(left, weights + part.group * of_group, copies, columns,
                           bias ? as<T>(bias) + part.group * c.out : nullptr, copies + plan.together * plan.copy, to);
    });
  });
}

// The gradient of x, phase by phase: the elements of x that the same elements of the kernel reach.
void conv2d_backward_input(const Convolution& c, const void* grad, const void* weight, void* out, void* workspace,
                           DType dtype) {
  const Plan plan(c, ConvolutionPass::kBackwardInput);
  const ConvolutionAxis &h = plan.h, &w = plan.w;
  const std::int64_t plane = (plan.rows + h.reach()) * plan.row;
  std::vector<Weights> phases(static_cast<std::size_t>(plan.planes), Weights{c.in, {}, h.kernel * w.kernel, {}});
  for (std::int64_t o = 0; o < c.out; ++o) {
    for (std::int64_t i = 0; i < h.kernel; ++i) {
      for (std::int64_t j = 0; j < w.kernel; ++j)
        phases[static_cast<std::size_t>(h.phase(i) * w.phases() + w.phase(j))].add(
            o * plan.inputs + i * w.kernel + j,
            o * plane + (h.reach() - h.shift(i)) * plan.row + w.reach() - w.shift(j));
    }
  }
  const std::int64_t of_group = c.out * plan.inputs;
  for_float(dtype, [&]<class T>(T) {
    T* const packed = as<T>(workspace);
    for (std::int64_t group = 0; group < c.groups; ++group) {
      const T* const from = as<T>(weight) + group * of_group;
      for_parts(up(c.out, kPackChannels), kPackChannels * plan.inputs, [&](std::int64_t begin, std::int64_t end) {
        for (std::int64_t first = begin * kPackChannels; first < std::min(end * kPackChannels, c.out);
             first += kPackChannels) {
          const std::int64_t last = std::min(first + kPackChannels, c.out);
          T* to = packed + group * of_group;
          for (const Weights& left : phases) {
            const std::int64_t of_channel = left.depth() / c.out;
            if (plan.lanes)
              left.pack_lanes(first * of_channel, last * of_channel, from, to);
            else
              left.pack(first * of_channel, last * of_channel, from, to);
            to += left.rows * left.depth();
          }
        }
      });
    }
    if (plan.planes < h.stride * w.stride)  // elements of x that no window contains
      std::fill(as<T>(out), as<T>(out) + c.images * c.groups * c.in * plan.pixels, T(0));
    plan.run([&](std::int64_t unit, std::int64_t share) {
      const Part part(plan, unit);
      T* const copies = packed + plan.packed + share * plan.room;
      part.for_images([&](std::int64_t each, std::int64_t block) {
        T* const copy = copies + each * plan.copy;
        for (std::int64_t o = 0; o < c.out; ++o)
          PaddedRows{part.begin, plan.rows + h.reach(), plan.row}.copy_gradient(
              h, w, h.first_place() - h.reach(), w.first_place() - w.reach(),
              as<T>(grad) + (block * c.out + o) * plan.positions, copy + o * plane);
        std::fill(copy + c.out * plane, copy + plan.copy, T(0));
      });
      const T* from = packed + part.group * of_group;
      for (std::int64_t f = 0; f < plan.planes; ++f) {
        const Weights& left = phases[static_cast<std::size_t>(f)];
        const std::int64_t y = h.target(f / w.phases()) + part.begin * h.stride, x = w.target(f % w.phases());
        const Columns columns = part.columns(places_inside(h.input, part.rows, h.stride, y),
                                             places_inside(w.input, plan.places, w.stride, x), y, h.stride, x, w.stride,
                                             w.input, plan.pixels, c.groups * c.in * plan.pixels);
        T* const to = as<T>(out) + part.first_block() * c.in * plan.pixels;
        part.multiply<true>(left, from, copies, columns, static_cast<const T*>(nullptr),
                            copies + plan.together * plan.copy, to);
        from += left.rows * left.depth();
      }
    });
  });
}

}  // namespace lockstep::LOCKSTEP_KERNELS
