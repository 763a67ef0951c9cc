// Convolution as matrix products whose right operand is a padded copy of the image itself: element (channel, i, j) of
// the windows at all positions is a run of the copy, row after row; positions past the end of a row are computed, too,
// and dropped. Sums over the window have the order (channel, i, j), at most kDepth terms at a time.
//
// Tiles and shares depend on the shapes alone, and an image's result does not depend on the other images, so results
// have the same bits for any number of threads and of images.
#include "lockstep/tensor/kernels/level_internal.h"

#include <algorithm>
#include <array>
#include <vector>

#include "lockstep/tensor/cpu/padded_planes_internal.h"
#include "lockstep/tensor/cpu/panel_product_internal.h"
#include "lockstep/tensor/ops/image_ops_internal.h"

namespace lockstep::LOCKSTEP_KERNELS {

namespace {

using raw::Convolution;
using raw::ConvolutionPass;

constexpr std::int64_t kCopy = 1 << 16;             // elements of a copy: it fits the second-level cache
constexpr std::int64_t kCopies = 1 << 18;           // elements of both copies of the pass for the weight
constexpr std::int64_t kDotColumns = 4096;          // columns of that pass that make its final sums cheap
constexpr std::int64_t kGatherColumns = 512;        // columns of a unit that gathers, so that few panels are partial
constexpr std::int64_t kTile = 1 << 15;             // elements of a tile of the result
constexpr std::int64_t kDepth = 256;                // terms that are added in sequence
constexpr std::int64_t kMostShares = 32;            // shares of the work; each has its own workspace
constexpr std::int64_t kPartials = 1 << 22;         // elements of all shares' weight gradients
constexpr std::int64_t kShareFrom = 1 << 20;        // minimum multiplications for several threads
constexpr std::int64_t kSlack = 2 * kPanel<float>;  // elements after a copy that its last panel reads

constexpr std::int64_t up(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }
std::int64_t aligned(std::int64_t elements) { return up(elements, 16) * 16; }

// Rows of `rows` for one copy, of which each takes `elements`, and `halo` rows more: equal parts.
std::int64_t rows_of_part(std::int64_t rows, std::int64_t halo, std::int64_t elements, std::int64_t most) {
  const std::int64_t fit = std::max<std::int64_t>(most / std::max<std::int64_t>(elements, 1) - halo, 1);
  return up(rows, up(rows, fit));
}

// The sizes of a pass, in elements. A unit is a group of an image, or some of its rows.
struct Plan {
  Plan(const Convolution& of, ConvolutionPass pass)
      : c(of), h(height_axis(c.windows)), w(width_axis(c.windows)), inputs(c.in * h.kernel * w.kernel),
        pixels(h.input * w.input), positions(h.output * w.output), weights(c.groups * c.out * inputs),
        planes(h.phases() * w.phases()) {
    const bool input = pass == ConvolutionPass::kBackwardInput;
    places = input ? w.places() : w.output;
    row = places + w.reach();
    all_rows = input ? h.places() : h.output;
    const std::int64_t of_copy = input ? c.out : c.in * planes;
    if (pass == ConvolutionPass::kBackwardWeight)
      plan_weight(of_copy);
    else
      plan_product(of_copy, input ? c.in : c.out);
  }
  std::int64_t workspace() const { return packed + shares * room; }

  // Calls body(unit, share) for all units, on several threads if worthwhile.
  template <class F>
  void run(F body) const {
    const auto share = [&](std::int64_t s) {
      for (std::int64_t unit = s * units / shares; unit < (s + 1) * units / shares; ++unit) body(unit, s);
    };
    if (shares > 1 && c.images * weights * positions >= kShareFrom)
      for_chunks(shares, share);
    else
      for (std::int64_t s = 0; s < shares; ++s) share(s);
  }

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
  bool gathered = false;              // whether columns are gathered from the copies: the places of the result only
  std::int64_t packed = 0, room = 0;  // workspace of all shares, and of each
  std::int64_t units = 0, shares = 0;

 private:
  void plan_product(std::int64_t of_copy, std::int64_t of_result) {
    rows = rows_of_part(all_rows, h.reach(), of_copy * row, kCopy);
    parts = up(all_rows, rows);
    copy = aligned(of_copy * (rows + h.reach()) * row + kSlack);
    // Gathering a row of a panel takes two moves for each run of places. Otherwise the places past the end of a row are
    // computed, a multiplication for each channel of the result.
    const std::int64_t exact = rows * places, all = up((rows - 1) * row + places, kPanel<float>) * kPanel<float>;
    gathered = (all - exact) * of_result > exact * 2 * (kPanel<float> / places + 1);
    if (gathered && parts == 1)
      together = std::clamp<std::int64_t>(std::min(up(kGatherColumns, exact), kCopies / copy), 1, up(c.images, 2));
    panels = std::clamp<std::int64_t>(kTile / (of_result * kPanel<float>), 2, 16);
    room =
        together * copy + aligned(of_result * panels * kPanel<float>) + (gathered ? (kDepth + 1) * kPanel<float> : 0);
    packed = aligned(weights);
    units = up(c.images, together) * c.groups * parts;
    shares = std::min(units, kMostShares);
  }
  void plan_weight(std::int64_t of_copy) {
    rows = rows_of_part(all_rows, h.reach(), (of_copy + c.out) * row, kCopies);
    parts = up(all_rows, rows);
    copy = aligned(of_copy * (rows + h.reach()) * row + w.reach() + kSlack);
    copy_of_grad = aligned(c.out * columns_of(rows));
    if (parts == 1)
      together = std::clamp<std::int64_t>(std::min(kDotColumns / columns_of(rows), kCopies / (copy + copy_of_grad)), 1,
                                          c.images);
    units = up(c.images, together) * parts;
    shares = std::min({units, kMostShares, std::max<std::int64_t>(kPartials / weights, 1)});
    room = together * (copy + copy_of_grad) + aligned(weights);
  }

 public:
  // Columns of so many rows, padded to whole registers.
  std::int64_t columns_of(std::int64_t of_rows) const { return aligned(of_rows * row); }
};

// The columns of a product: places (t, u) of copies that are `row` wide, and where they belong in the result.
struct Columns {
  std::int64_t images, copy, row;  // copies, elements of each, elements of a row
  bool gathered;           // the places of the result only; otherwise column t row + u of one copy is place (t, u)
  Range rows, places;      // those in the result
  std::int64_t y, y_step;  // place (t, u) is row y + t y_step and column x + u x_step of a channel
  std::int64_t x, x_step;
  std::int64_t width, pixels, image;  // of a channel; elements of an image of the result

  std::int64_t count() const {
    const std::int64_t high = rows.last - rows.first, wide = places.last - places.first;
    if (high <= 0 || wide <= 0) return 0;
    return gathered ? images * high * wide : (rows.last - 1) * row + places.last;
  }
  // Calls body(column - begin, image, t, u, run) for the runs of places among columns [begin, begin + count).
  template <class F>
  void for_runs(std::int64_t begin, std::int64_t count, F body) const {
    if (gathered) {
      const std::int64_t high = rows.last - rows.first, wide = places.last - places.first;
      const std::int64_t end = std::min(begin + count, images * high * wide);
      for (std::int64_t at = begin; at < end;) {
        const std::int64_t line = at / wide, u = at % wide, run = std::min(wide - u, end - at);
        body(at - begin, line / high, rows.first + line % high, places.first + u, run);
        at += run;
      }
      return;
    }
    for (std::int64_t t = std::max(begin / row, rows.first); t * row < begin + count && t < rows.last; ++t) {
      const std::int64_t first = std::max(places.first, begin - t * row);
      const std::int64_t last = std::min(places.last, begin + count - t * row);
      if (first < last) body(t * row + first - begin, std::int64_t{0}, t, first, last - first);
    }
  }
  // panel[p] = the columns [begin, begin + kPanel) at copies[offsets[p]]. Runs overlap: each is a panel long, and what
  // is too much is overwritten by the next one.
  template <class T>
  void gather(const T* copies, std::int64_t begin, const std::int64_t* offsets, std::int64_t depth, T* panel) const {
    using R = Register<T>;
    std::int64_t to[kPanel<T>], from[kPanel<T>], runs = 0;
    for_runs(begin, kPanel<T>, [&](std::int64_t at, std::int64_t n, std::int64_t t, std::int64_t u, std::int64_t) {
      to[runs] = at;
      from[runs++] = n * copy + t * row + u;
    });
    for (std::int64_t p = 0; p < depth; ++p, panel += kPanel<T>) {
      for (std::int64_t run = 0; run < runs; ++run) {
        const T* const source = copies + offsets[p] + from[run];
        const R low = simd::ploadu<R>(source), high = simd::ploadu<R>(source + kLanes<T>);
        simd::pstoreu(panel + to[run], low);
        simd::pstoreu(panel + to[run] + kLanes<T>, high);
      }
    }
  }
  // Stores columns [begin, begin + count) of a tile (channels, count), plus a channel's bias if there is one.
  template <class T>
  void store(const T* tile, std::int64_t channels, std::int64_t begin, std::int64_t count, const T* bias,
             T* out) const {
    for_runs(begin, count, [&](std::int64_t at, std::int64_t n, std::int64_t t, std::int64_t u, std::int64_t run) {
      T* to = out + n * image + (y + t * y_step) * width + x + u * x_step;
      const T* from = tile + at;
      for (std::int64_t channel = 0; channel < channels; ++channel, to += pixels, from += count) {
        const T shift = bias ? bias[channel] : T(0);
        if (x_step == 1) {
          for (std::int64_t k = 0; k < run; ++k) to[k] = bias ? from[k] + shift : from[k];
        } else {
          for (std::int64_t k = 0; k < run; ++k) to[k * x_step] = from[k];
        }
      }
    });
  }
};

// The offsets of rows of a gathered panel.
constexpr auto kPanelOffsets = [] {
  std::array<std::array<std::int64_t, kDepth>, 2> offsets{};  // for f32 and f64
  for (std::int64_t p = 0; p < kDepth; ++p) {
    offsets[0][static_cast<std::size_t>(p)] = p * kPanel<float>;
    offsets[1][static_cast<std::size_t>(p)] = p * kPanel<double>;
  }
  return offsets;
}();

// A matrix of weights, packed for panel_block, and where each of its columns begins in a copy.
struct PackedWeights {
  std::int64_t rows;
  std::vector<std::int64_t> sources;  // element (i, p) is weight[i row_step + sources[p]]
  std::int64_t row_step;
  std::vector<std::int64_t> offsets;

  std::int64_t depth() const { return static_cast<std::int64_t>(offsets.size()); }
  void add(std::int64_t source, std::int64_t offset) {
    sources.push_back(source);
    offsets.push_back(offset);
  }
  template <class T>
  std::int64_t blocks() const {
    return up(rows, kPanelRows<T>);
  }
  template <class T>
  void pack(const T* weight, T* to) const {
    for (std::int64_t block = 0; block < blocks<T>(); ++block) {
      const std::int64_t first = block * rows / blocks<T>(), last = (block + 1) * rows / blocks<T>();
      for (const std::int64_t source : sources) {
        for (std::int64_t i = first; i < last; ++i) *to++ = weight[i * row_step + source];
      }
    }
  }
  // The product with copies, in tiles: `work` has room for one, and for a gathered panel. store(tile, begin, count) takes
  // columns [begin, begin + count).
  template <class T, class F>
  void multiply(const T* packed, const T* copies, const Columns& columns, std::int64_t panels, T* work, F store) const {
    T *const tile = work, *const panel = work + aligned(rows * panels * kPanel<float>);
    for (std::int64_t begin = 0; begin < columns.count(); begin += panels * kPanel<T>) {
      const std::int64_t count = std::min(panels, up(columns.count() - begin, kPanel<T>)) * kPanel<T>;
      for (std::int64_t p = 0; p < depth(); p += kDepth) {
        const std::int64_t terms = std::min(kDepth, depth() - p);
        for (std::int64_t column = 0; column < count; column += kPanel<T>) {
          const std::int64_t* places = offsets.data() + p;
          const T* right = copies + begin + column;
          if (columns.gathered) {
            columns.gather(copies, begin + column, places, terms, panel);
            places = kPanelOffsets[sizeof(T) == sizeof(double)].data();
            right = panel;
          }
          for (std::int64_t block = 0; block < blocks<T>(); ++block) {
            const std::int64_t first = block * rows / blocks<T>(), n = (block + 1) * rows / blocks<T>() - first;
            panel_block_of<T>(n)(packed + first * depth() + p * n, right, places, terms, p > 0,
                                 tile + first * count + column, count);
          }
        }
      }
      store(tile, begin, count);
    }
  }
};

// A unit of a plan: rows of a group of some images.
struct Part {
  Part(const Plan& of, std::int64_t unit)
      : plan(of), first(unit / (plan.c.groups * plan.parts) * plan.together), group(unit / plan.parts % plan.c.groups),
        begin(unit % plan.parts * plan.rows), rows(std::min(plan.rows, plan.all_rows - begin)),
        images(std::min(plan.together, plan.c.images - first)) {}

  std::int64_t first_block() const { return first * plan.c.groups + group; }
  // Calls body(number of the image in the part, group of the image).
  template <class F>
  void for_images(F body) const {
    for (std::int64_t each = 0; each < images; ++each) body(each, (first + each) * plan.c.groups + group);
  }
  Columns columns(Range of_rows, Range places, std::int64_t y, std::int64_t y_step, std::int64_t x, std::int64_t x_step,
                  std::int64_t width, std::int64_t pixels, std::int64_t image) const {
    return {images, plan.copy, plan.row, plan.gathered, of_rows, places, y, y_step, x, x_step, width, pixels, image};
  }

  const Plan& plan;
  std::int64_t first, group;  // the first image, the group
  std::int64_t begin, rows;   // in the images
  std::int64_t images;
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
std::int64_t offset_of(const Plan& plan, std::int64_t rows, std::int64_t channel, std::int64_t i, std::int64_t j) {
  const std::int64_t plane = (channel * plan.h.phases() + plan.h.phase(i)) * plan.w.phases() + plan.w.phase(j);
  return (plane * (rows + plan.h.reach()) + plan.h.shift(i)) * plan.row + plan.w.shift(j);
}

}  // namespace

void conv2d_workspace(const Convolution& c, ConvolutionPass pass, std::int64_t* elements) {
  *elements = Plan(c, pass).workspace();
}

void conv2d(const Convolution& c, const void* x, const void* weight, const void* bias, void* out, void* workspace,
            DType dtype) {
  const Plan plan(c, ConvolutionPass::kForward);
  PackedWeights left{c.out, {}, plan.inputs, {}};
  for_window(plan, [&](std::int64_t element, std::int64_t channel, std::int64_t i, std::int64_t j) {
    left.add(element, offset_of(plan, plan.rows, channel, i, j));
  });
  const std::int64_t of_group = c.out * plan.inputs;
  for_float(dtype, [&]<class T>(T) {
    T* const packed = as<T>(workspace);
    for (std::int64_t group = 0; group < c.groups; ++group)
      left.pack(as<T>(weight) + group * of_group, packed + group * of_group);
    plan.run([&](std::int64_t unit, std::int64_t share) {
      const Part part(plan, unit);
      T* const copies = packed + plan.packed + share * plan.room;
      const std::int64_t plane = plan.planes * (plan.rows + plan.h.reach()) * plan.row;
      part.for_images([&](std::int64_t each, std::int64_t block) {
        T* const copy = copies + each * plan.copy;
        for (std::int64_t channel = 0; channel < c.in; ++channel)
          PaddedRows{part.begin, plan.rows + plan.h.reach(), plan.row}.copy_input(
              plan.h, plan.w, as<T>(x) + (block * c.in + channel) * plan.pixels, copy + channel * plane);
        std::fill(copy + c.in * plane, copy + plan.copy, T(0));
      });
      const Columns columns = part.columns({0, part.rows}, {0, plan.w.output}, part.begin, 1, 0, 1, plan.w.output,
                                           plan.positions, c.groups * c.out * plan.positions);
      T* const to = as<T>(out) + part.first_block() * c.out * plan.positions;
      left.multiply(packed + part.group * of_group, copies, columns, plan.panels, copies + plan.together * plan.copy,
                    [&](const T* tile, std::int64_t first, std::int64_t count) {
                      columns.store(tile, c.out, first, count, bias ? as<T>(bias) + part.group * c.out : nullptr, to);
                    });
    });
  });
}

// The gradient of x, phase by phase: the elements of x that the same elements of the kernel reach.
void conv2d_backward_input(const Convolution& c, const void* grad, const void* weight, void* out, void* workspace,
                           DType dtype) {
  const Plan plan(c, ConvolutionPass::kBackwardInput);
  const ConvolutionAxis &h = plan.h, &w = plan.w;
  const std::int64_t plane = (plan.rows + h.reach()) * plan.row;
  std::vector<PackedWeights> phases(static_cast<std::size_t>(plan.planes),
                                    PackedWeights{c.in, {}, h.kernel * w.kernel, {}});
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
      T* to = packed + group * of_group;
      for (const PackedWeights& left : phases) {
        left.pack(as<T>(weight) + group * of_group, to);
        to += left.rows * left.depth();
      }
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
        const PackedWeights& left = phases[static_cast<std::size_t>(f)];
        const std::int64_t y = h.target(f / w.phases()) + part.begin * h.stride, x = w.target(f % w.phases());
        const Columns columns = part.columns(places_inside(h.input, part.rows, h.stride, y),
                                             places_inside(w.input, plan.places, w.stride, x), y, h.stride, x, w.stride,
                                             w.input, plan.pixels, c.groups * c.in * plan.pixels);
        T* const to = as<T>(out) + part.first_block() * c.in * plan.pixels;
        left.multiply(from, copies, columns, plan.panels, copies + plan.together * plan.copy,
                      [&](const T* tile, std::int64_t first, std::int64_t count) {
                        columns.store(tile, c.in, first, count, static_cast<const T*>(nullptr), to);
                      });
        from += left.rows * left.depth();
      }
    });
  });
}

namespace {

// total (c.out, inputs) += the products of the copies of `count` units: of gradients, whose columns past the end of a row
// are zeros, and of x.
template <class T>
void add_dots(const Plan& plan, const std::vector<std::int64_t>& offsets, const T* x, const T* grad, std::int64_t count,
              std::int64_t columns, T* total) {
  const std::int64_t outs = plan.c.out;
  for (std::int64_t o = 0; o < outs; o += kDotLeft<T>) {
    for (std::int64_t p = 0; p < plan.inputs; p += kDotRight<T>) {
      DotBlock<T> block;
      for (std::int64_t unit = 0; unit < count; ++unit) {  // rows past the last one repeat it
        const T *left[kDotLeft<T>], *right[kDotRight<T>];
        for (int i = 0; i < kDotLeft<T>; ++i)
          left[i] = grad + unit * plan.copy_of_grad + std::min(o + i, outs - 1) * columns;
        for (int j = 0; j < kDotRight<T>; ++j)
          right[j] = x + unit * plan.copy + offsets[static_cast<std::size_t>(std::min(p + j, plan.inputs - 1))];
        block.add(left, right, columns);
      }
      for (int i = 0; i < kDotLeft<T> && o + i < outs; ++i) {
        for (int j = 0; j < kDotRight<T> && p + j < plan.inputs; ++j)
          total[(o + i) * plan.inputs + p + j] += block.sum(i, j);
      }
    }
  }
}

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
    const auto total_of = [&](std::int64_t share) { return as<T>(workspace) + share * plan.room; };
    for (std::int64_t share = 0; share < plan.shares; ++share)
      std::fill(total_of(share), total_of(share) + plan.weights, T(0));
    plan.run([&](std::int64_t unit, std::int64_t share) {
      const std::int64_t first = unit / plan.parts * plan.together, begin = unit % plan.parts * plan.rows;
      const std::int64_t count = std::min(plan.together, c.images - first);
      const std::int64_t rows = std::min(plan.rows, plan.all_rows - begin);
      T* const of_x = total_of(share) + aligned(plan.weights);
      T* const of_grad = of_x + plan.together * plan.copy;
      for (std::int64_t group = 0; group < c.groups; ++group) {
        for (std::int64_t each = 0; each < count; ++each) {
          const std::int64_t block = (first + each) * c.groups + group;
          T* const inputs = of_x + each * plan.copy;
          for (std::int64_t channel = 0; channel < c.in; ++channel)
            PaddedRows{begin, plan.rows + plan.h.reach(), plan.row}.copy_input(
                plan.h, plan.w, as<T>(x) + (block * c.in + channel) * plan.pixels, inputs + channel * channel_of_copy);
          std::fill(inputs + c.in * channel_of_copy, inputs + plan.copy, T(0));
          for (std::int64_t o = 0; o < c.out; ++o) {
            T* const row = of_grad + each * plan.copy_of_grad + o * columns;
            PaddedRows{begin, rows, plan.row}.copy_gradient(plan.h, plan.w, 0, 0,
                                                            as<T>(grad) + (block * c.out + o) * plan.positions, row);
            std::fill(row + rows * plan.row, row + columns, T(0));
          }
        }
        add_dots(plan, offsets, of_x, of_grad, count, columns, total_of(share) + group * c.out * plan.inputs);
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
