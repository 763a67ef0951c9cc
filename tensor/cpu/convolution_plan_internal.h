// The plan of a convolution, which is matrix products whose right operand is a padded copy of the image itself: element
// (channel, i, j) of the windows at all positions is a run of the copy, row after row. The columns of a product are
// positions; those past the end of a row are computed, too, and dropped, or the places of the result are gathered. Or its
// columns are the channels of the result, which are the lanes of registers then, and nothing is dropped. All have the same
// sums: over a window in the order (channel, i, j), at most kDepth terms at a time. Rows share their zeros: those at the end
// of one are those at the start of the next one.
//
// An image's result does not depend on the other images, nor a sum on the slice of channels that it is in, and what else
// is cut follows from the shapes alone, so results have the same bits for any number of threads.
#pragma once

#include <algorithm>
#include <cstdint>

#include "lockstep/base/threads.h"
#include "lockstep/tensor/cpu/padded_planes_internal.h"
#include "lockstep/tensor/cpu/panel_product_internal.h"
#include "lockstep/tensor/kernels/level_internal.h"
#include "lockstep/tensor/ops/image_ops_internal.h"

namespace lockstep::LOCKSTEP_KERNELS::convolution {

using raw::Convolution;
using raw::ConvolutionPass;

inline constexpr std::int64_t kCopy = 1 << 16;       // elements of a copy: it fits the second-level cache
inline constexpr std::int64_t kCopies = 1 << 18;     // elements of both copies of the pass for the weight
inline constexpr std::int64_t kDotColumns = 4096;    // columns of that pass that make its final sums cheap
inline constexpr std::int64_t kGatherColumns = 512;  // columns of a unit that gathers, so that few panels are partial
inline constexpr std::int64_t kTile = 1 << 15;       // elements of a tile of the result
inline constexpr std::int64_t kFewestPlaces = 5;     // of a row, for lanes
inline constexpr std::int64_t kFewestChannels = 8;   // of x, for lanes in the pass for the weight
inline constexpr std::int64_t kFewestSums = 128;     // places in all images, likewise
inline constexpr std::int64_t kTransposed = 8;       // multiplications that take as long as transposing a result
inline constexpr std::int64_t kPacked = 20;          // the same for packing a weight
inline constexpr std::int64_t kRange = 4 * kPanel<float>;  // most columns of a share of a gathered weight pass
inline constexpr std::int64_t kDepth = 256;                // terms that are added in sequence
inline constexpr std::int64_t kPackChannels =
    8;  // of the result, whose weights are packed at a time: they fit the cache
inline constexpr std::int64_t kMostShares = 32;      // shares of the work; each has its own workspace
inline constexpr std::int64_t kUnitsForThreads = 8;  // below, units are cut into slices of the channels
inline constexpr std::int64_t kSliceRows = 32;       // channels of a slice, at least
inline constexpr std::int64_t kPartials = 1 << 22;   // elements of all shares' weight gradients
inline constexpr std::int64_t kWorkspace = 1 << 24;  // elements of all shares' workspaces, unless one is larger
inline constexpr std::int64_t kShareFrom = 1 << 20;  // minimum multiplications for several threads
inline constexpr std::int64_t kSlack =
    2 * kPanel<float>;  // elements after a copy, of zeros, that its last row and panel read

constexpr std::int64_t up(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }
inline std::int64_t aligned(std::int64_t elements) { return up(elements, 16) * 16; }

// Rows of `rows` for one copy, of which each takes `elements`, and `halo` rows more: equal parts.
inline std::int64_t rows_of_part(std::int64_t rows, std::int64_t halo, std::int64_t elements, std::int64_t most) {
  const std::int64_t fit = std::max<std::int64_t>(most / std::max<std::int64_t>(elements, 1) - halo, 1);
  return up(rows, up(rows, fit));
}

// The sizes of a pass, in elements. A unit is a group of some images, or some of its rows, or a slice of its channels.
struct Plan {
  Plan(const Convolution& of, ConvolutionPass pass)
      : c(of), h(height_axis(c.windows)), w(width_axis(c.windows)), inputs(c.in * h.kernel * w.kernel),
        pixels(h.input * w.input), positions(h.output * w.output), weights(c.groups * c.out * inputs),
        planes(h.phases() * w.phases()) {
    const bool input = pass == ConvolutionPass::kBackwardInput;
    places = input ? w.places() : w.output;
    row = places + w.reach() - shared_zeros(input);
    all_rows = input ? h.places() : h.output;
    const std::int64_t of_copy = input ? c.out : c.in * planes;
    if (pass == ConvolutionPass::kBackwardWeight)
      plan_weight(of_copy);
    else
      plan_product(of_copy, input ? c.in : c.out, /*packs=*/!input);
    if (input || (lanes && pass == ConvolutionPass::kForward)) packed = aligned(weights);
  }
  std::int64_t workspace() const { return packed + most_shares * room; }

  // Calls body(unit, share) for all units, on several threads if worthwhile.
  template <class F>
  void run(F body) const {
    share(shares, [&](std::int64_t s) {
      for (std::int64_t unit = s * units / shares; unit < (s + 1) * units / shares; ++unit) body(unit, s);
    });
  }
  // Calls body(i) for i < count, likewise.
  template <class F>
  void share(std::int64_t count, F body) const {
    if (count > 1 && is_shared()) return for_chunks(count, body);
    for (std::int64_t i = 0; i < count; ++i) body(i);
  }

  bool is_shared() const { return c.images * weights * positions >= kShareFrom; }

  const Convolution& c;
  const ConvolutionAxis h, w;
  std::int64_t inputs;     // elements of one window
  std::int64_t pixels;     // elements of one channel of x
  std::int64_t positions;  // windows of an image
  std::int64_t weights;
  std::int64_t planes;                      // of a channel of x
  std::int64_t places = 0, row = 0;         // of a row of the result, and of the copy
  std::int64_t all_rows = 0;                // of an image
  std::int64_t rows = 0, parts = 0;         // rows of a unit; units of a group of an image
  std::int64_t copy = 0, copy_of_grad = 0;  // elements of the copies of a unit
  std::int64_t panels = 0;                  // of a tile of the result
  std::int64_t together = 1;                // images of a unit
  bool lanes = false;                       // whether channels of the result are lanes of registers
  bool gathered = false;              // whether panels are gathered from the copies, with places of the result only
  std::int64_t packed = 0, room = 0;  // workspace of all shares, and of each
  std::int64_t range = kRange;        // columns of a share of a gathered weight pass
  std::int64_t slices = 1;            // of the channels of a unit's result
  std::int64_t units = 0, shares = 0;
  std::int64_t most_shares = 0;  // with any number of threads

 private:
  // Elements of a copy's row that are zeros at both of its ends, for every phase: a row leaves them out at its end, as the
  // next row begins with them. A row keeps its places, and a copy's last panel stays within kSlack.
  std::int64_t shared_zeros(bool input) const {
    const std::int64_t whole = places + w.reach();
    std::int64_t shared = std::min(w.reach(), kSlack / 2);
    for (std::int64_t f = 0; f < (input ? 1 : w.phases()); ++f) {
      const auto [first, end] = input ? places_inside(w.output, whole, 1, w.first_place() - w.reach())
                                      : places_inside(w.input, whole, w.stride, w.residue(f) - w.padding);
      shared = std::min({shared, first, whole - end});
    }
    return shared;
  }
  void plan_product(std::int64_t of_copy, std::int64_t of_result, bool packs) {
    rows = rows_of_part(all_rows, h.reach(), of_copy * row, kCopy);
    parts = up(all_rows, rows);
    copy = aligned(of_copy * (rows + h.reach()) * row + kSlack);
    // Gathering a row of a panel takes two moves for each run of places. Otherwise the places past the end of a row are
    // computed, a multiplication for each channel of the result.
    const auto in_panels = [](std::int64_t columns) { return up(columns, kPanel<float>) * kPanel<float>; };
    const std::int64_t exact = rows * places, all = in_panels((rows - 1) * row + places);
    // In lanes no place is dropped, but results are transposed, and in the forward pass weights are packed.
    const std::int64_t terms = c.in * c.out * h.kernel * w.kernel / (of_result * (packs ? 1 : planes));
    lanes = of_result % kLanes<float> == 0 && of_result >= kPanel<float> && places >= kFewestPlaces &&
            c.images * parts * ((all - exact) * terms - exact * kTransposed) > (packs ? kPacked * terms : 0);
    gathered = !lanes &&
               (all - (parts == 1 ? exact : in_panels(exact))) * of_result > exact * 2 * (kPanel<float> / places + 1);
    if (gathered && parts == 1)  // two parts of the images or more, for threads, unless they are tiny
      together = std::clamp<std::int64_t>(std::min(up(kGatherColumns, exact), kCopies / copy), 1,
                                          c.images * exact <= 4 * kPanel<float> ? c.images : up(c.images, 2));
    panels = std::clamp<std::int64_t>(kTile / (of_result * kPanel<float>), 2, 16);
    room =
        together * copy + aligned(of_result * panels * kPanel<float>) + (gathered ? (kDepth + 1) * kPanel<float> : 0);
    if (lanes) room = copy + 2 * (std::max(kTile, places * kPanel<float>) + kPanel<float> * kPanel<float>);
    // Slices copy and gather the same columns, so there are no more than threads. They do not change a sum.
    const std::int64_t whole = up(c.images, together) * c.groups * parts;
    const std::int64_t most =
        std::clamp<std::int64_t>(kUnitsForThreads / whole, 1, std::max<std::int64_t>(of_result / kSliceRows, 1));
    slices = is_shared() ? std::clamp<std::int64_t>(num_threads() / whole, 1, most) : 1;
    most_shares = shares_of(whole * most, kMostShares);
    units = whole * slices;
    shares = shares_of(units, kMostShares);
  }
  void plan_weight(std::int64_t of_copy) {
    rows = rows_of_part(all_rows, h.reach(), (of_copy + c.out) * row, kCopies);
    parts = up(all_rows, rows);
    copy = aligned(of_copy * (rows + h.reach()) * row + w.reach() + kSlack);
    copy_of_grad = aligned(c.out * columns_of(rows));
    if (parts == 1) {
      together = std::clamp<std::int64_t>(std::min(kDotColumns / columns_of(rows), kCopies / (copy + copy_of_grad)), 1,
                                          c.images);
      if (together < c.images) together = up(c.images, up(up(c.images, together), 2) * 2);  // for two threads
    }
    units = up(c.images, together) * c.groups * parts;
    lanes = h.kernel == 3 && w.kernel == 3 && h.stride == 1 && w.stride == 1 && h.dilation == 1 && w.dilation == 1 &&
            c.out % kLanes<float> == 0 && c.out >= kPanel<float> && c.in >= kFewestChannels &&
            c.images * positions >= kFewestSums;
    if (lanes) {
      shares = most_shares = 1;
      packed = aligned(weights + kLanes<float> * kPanel<float>);
      room = together * (copy + aligned(c.out * rows * places));
      return;
    }
    // Cycles for an element of the weight and a unit, with 16 lanes: products of rows end with a sum of lanes, and panels
    // have to be gathered across the rows of x.
    const std::int64_t terms = together * rows * places, dots = together * columns_of(rows) / 32 + 14;
    gathered = dots > terms / 32 + 2 * terms / c.out + 1;
    if (gathered) {
      shares = most_shares = 1;
      range = std::clamp<std::int64_t>(inputs / 16 / kPanel<float> * kPanel<float>, kPanel<float>, kRange);
      packed = aligned(c.out * terms);
      room = together * copy + up(inputs, range) * (aligned(c.out * kPanel<float>) + kDepth * kPanel<float>);
      return;
    }
    room = together * (copy + copy_of_grad) + aligned(weights);
    shares = most_shares = shares_of(units, std::min(kMostShares, kPartials / weights));
  }
  // Long rows, which no part cuts, make workspaces large.
  std::int64_t shares_of(std::int64_t of_units, std::int64_t most) const {
    return std::max<std::int64_t>(std::min({of_units, most, kWorkspace / room}), 1);
  }

 public:
  // Columns of so many rows, padded to whole registers.
  std::int64_t columns_of(std::int64_t of_rows) const { return aligned(of_rows * row); }
};

// Calls body(element of the window, channel, i, j).
template <class F>
void for_window(const Plan& plan, F body) {
  std::int64_t element = 0;
  for (std::int64_t channel = 0; channel < plan.c.in; ++channel) {
    for (std::int64_t i = 0; i < plan.h.kernel; ++i) {
      for (std::int64_t j = 0; j < plan.w.kernel; ++j) body(element++, channel, i, j);
    }
  }
}

// Where an element of the windows begins in a copy of c.in channels, `rows` high without the reach.
inline std::int64_t offset_of(const Plan& plan, std::int64_t rows, std::int64_t channel, std::int64_t i,
                              std::int64_t j) {
  const std::int64_t plane = (channel * plan.h.phases() + plan.h.phase(i)) * plan.w.phases() + plan.w.phase(j);
  return (plane * (rows + plan.h.reach()) + plan.h.shift(i)) * plan.row + plan.w.shift(j);
}

}  // namespace lockstep::LOCKSTEP_KERNELS::convolution
