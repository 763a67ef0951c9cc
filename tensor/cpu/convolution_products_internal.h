// The products of the forward pass and of the pass for the input: their columns, a matrix of weights, a unit of the plan.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <vector>

#include "lockstep/tensor/cpu/convolution_plan_internal.h"
#include "lockstep/tensor/cpu/lanes_internal.h"

namespace lockstep::LOCKSTEP_KERNELS::convolution {

// The columns of a product: places (t, u) of copies that are `row` wide, and where they belong in the result.
struct Columns {
  std::int64_t images, copy, row;  // copies, elements of each, elements of a row
  bool gathered;           // the places of the result only; otherwise column t row + u of one copy is place (t, u)
  Range rows, places;      // those in the result
  std::int64_t y, y_step;  // place (t, u) is row y + t y_step and column x + u x_step of a channel
  std::int64_t x, x_step;
  std::int64_t width, pixels, image;  // of a channel; elements of an image of the result

  std::int64_t count() const {
    const std::int64_t high = rows.end - rows.first, wide = places.end - places.first;
    if (high <= 0 || wide <= 0) return 0;
    return gathered ? images * high * wide : (rows.end - 1) * row + places.end;
  }
  // Calls body(column - begin, image, t, u, run) for the runs of places among columns [begin, begin + count).
  template <class F>
  void for_runs(std::int64_t begin, std::int64_t count, F body) const {
    if (gathered) {
      const std::int64_t high = rows.end - rows.first, wide = places.end - places.first;
      const std::int64_t end = std::min(begin + count, images * high * wide);
      std::int64_t u = begin % wide, t = begin / wide % high, n = begin / wide / high;
      for (std::int64_t at = begin; at < end;) {
        const std::int64_t run = std::min(wide - u, end - at);
        body(at - begin, n, rows.first + t, places.first + u, run);
        at += run;
        u = 0;
        if (++t == high) t = 0, ++n;
      }
      return;
    }
    for (std::int64_t t = std::max(begin / row, rows.first); t * row < begin + count && t < rows.end; ++t) {
      const std::int64_t first = std::max(places.first, begin - t * row);
      const std::int64_t end = std::min(places.end, begin + count - t * row);
      if (first < end) body(t * row + first - begin, std::int64_t{0}, t, first, end - first);
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
  // Whether the columns of a channel are a run of the result.
  bool is_run() const {
    return images == 1 && !gathered && x_step == 1 && y_step == 1 && row == width && places.end - places.first == row;
  }
  // Whether the places are consecutive elements of a channel.
  bool is_dense() const { return x_step == 1 && y_step == 1 && places.end - places.first == width; }
  template <class T>
  T* run_in(T* out) const {
    return out + y * width + x;
  }
  // Stores columns [begin, begin + count) of a tile (channels, tile_row), plus a channel's bias if there is one.
  template <class T>
  void store(const T* tile, std::int64_t tile_row, std::int64_t channels, std::int64_t begin, std::int64_t count,
             const T* bias, T* out) const {
    for_runs(begin, count, [&](std::int64_t at, std::int64_t n, std::int64_t t, std::int64_t u, std::int64_t run) {
      T* to = out + n * image + (y + t * y_step) * width + x + u * x_step;
      const T* from = tile + at;
      for (std::int64_t channel = 0; channel < channels; ++channel, to += pixels, from += tile_row) {
        if (x_step != 1) {
          for (std::int64_t k = 0; k < run; ++k) to[k * x_step] = from[k];
        } else if (bias) {
          for (std::int64_t k = 0; k < run; ++k) to[k] = from[k] + bias[channel];
        } else {
          for (std::int64_t k = 0; k < run; ++k) to[k] = from[k];
        }
      }
    });
  }
};

// The offsets of rows of a gathered panel.
inline constexpr auto kPanelOffsets = [] {
  std::array<std::array<std::int64_t, kDepth>, 2> offsets{};  // for f32 and f64
  for (std::int64_t p = 0; p < kDepth; ++p) {
    offsets[0][static_cast<std::size_t>(p)] = p * kPanel<float>;
    offsets[1][static_cast<std::size_t>(p)] = p * kPanel<double>;
  }
  return offsets;
}();

// A matrix of weights, and where each of its columns begins in a copy.
struct Weights {
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
  // The rows of a block.
  template <class T>
  Range rows_of(std::int64_t block) const {
    return {block * rows / blocks<T>(), (block + 1) * rows / blocks<T>()};
  }
  // Packs the columns [begin, end) of all blocks.
  template <class T>
  void pack(std::int64_t begin, std::int64_t end, const T* weight, T* packed) const {
    const auto columns =
        std::span(sources).subspan(static_cast<std::size_t>(begin), static_cast<std::size_t>(end - begin));
    for (std::int64_t block = 0; block < blocks<T>(); ++block) {
      const std::int64_t first = rows_of<T>(block).first, n = rows_of<T>(block).end - first;
      pack_rows_of<T>(n)(weight + first * row_step, row_step, columns, packed + first * depth() + begin * n);
    }
  }
  // Stores the product of some blocks with copies, plus a channel's bias if there is one, in tiles: `work` has room for
  // one, and for a gathered panel. Columns that are a run of the result are computed there, all but the last ones.
  template <bool kPacked, class T>
  void multiply(const Range& some, const T* weights, const T* copies, const Columns& columns, std::int64_t panels,
                const T* bias, T* work, T* out) const {
    const Range channels = {rows_of<T>(some.first).first, rows_of<T>(some.end).first};
    T *const tile = work, *const panel = work + aligned(rows * panels * kPanel<float>);
    const std::int64_t all = columns.count(), in_place = columns.is_run() ? all / kPanel<T> * kPanel<T> : 0;
    for (std::int64_t begin = 0; begin < all;) {
      const bool direct = begin < in_place;
      const std::int64_t count =
          std::min(panels * kPanel<T>, direct ? in_place - begin : up(all - begin, kPanel<T>) * kPanel<T>);
      T* const to = direct ? columns.run_in(out) + begin : tile;
      const std::int64_t to_row = direct ? columns.pixels : count;
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
          for (std::int64_t block = some.first; block < some.end; ++block) {
            const std::int64_t first = rows_of<T>(block).first, n = rows_of<T>(block).end - first;
            panel_block_of<kPacked ? Operands::kPacked : Operands::kRows, T>(n, all - begin - column)(
                weights + (kPacked ? first * depth() + p * n : first * row_step + p), row_step, right, places, terms,
                p > 0, to + first * to_row + column, to_row);
          }
        }
      }
      if (!direct || bias)
        columns.store(to + channels.first * to_row, to_row, channels.end - channels.first, begin, count,
                      bias ? bias + channels.first : bias, out + channels.first * columns.pixels);
      begin += count;
    }
  }

  // The same with the channels of the result in the lanes of registers and its places as factors, so that none is
  // dropped, for one copy. The sums are those of multiply, bit for bit.
  template <class T>
  void multiply_lanes(const Range& some, const T* packed, const T* copy, const Columns& columns, const T* bias, T* work,
                      T* out) const {
    constexpr int kMost = kBlockRows<Operands::kLanes, T>;
    const std::int64_t wide = columns.places.end - columns.places.first, blocks = up(wide, kMost);
    const std::int64_t high = std::max<std::int64_t>(kTile / (kPanel<T> * wide), 1);
    for (std::int64_t first = some.first * kPanel<T>; first < std::min(some.end * kPanel<T>, rows);
         first += kPanel<T>) {
      const std::int64_t n = std::min(kPanel<T>, rows - first);
      for (std::int64_t begin = columns.rows.first; begin < columns.rows.end; begin += high) {
        const std::int64_t end = std::min(begin + high, columns.rows.end), count = (end - begin) * wide;
        for (std::int64_t p = 0; p < depth(); p += kDepth) {
          T* sums = work;
          for (std::int64_t t = begin; t < end; ++t) {
            for (std::int64_t block = 0; block < blocks; ++block) {
              const std::int64_t u = block * wide / blocks, places = (block + 1) * wide / blocks - u;
              panel_block_of<Operands::kLanes, T>(places, n)(copy + t * columns.row + columns.places.first + u, 0,
                                                             packed + first * depth() + p * n, offsets.data() + p,
                                                             std::min(kDepth, depth() - p), p > 0, sums, n);
              sums += places * n;
            }
          }
        }
        const T* const shift = bias ? bias + first : nullptr;
        T* const to = out + first * columns.pixels;
        if (columns.is_dense()) {
          out_of_lanes(work, n, count, shift, columns.run_in(to) + begin * wide, columns.pixels);
        } else {
          T* const tile = work + count * n;
          out_of_lanes(work, n, count, shift, tile, count);
          columns.store(tile, count, n, (begin - columns.rows.first) * wide, count, static_cast<const T*>(nullptr), to);
        }
      }
    }
  }
  template <class T>
  std::int64_t lane_blocks() const {
    return up(rows, kPanel<T>);
  }
  // Packs the columns [begin, end) of all blocks: the channels of a block for each column.
  template <class T>
  void pack_lanes(std::int64_t begin, std::int64_t end, const T* weight, T* packed) const {
    for (std::int64_t first = 0; first < rows; first += kPanel<T>) {
      const std::int64_t n = std::min(kPanel<T>, rows - first);
      const T* const from = weight + first * row_step;
      T* const to = packed + first * depth();
      for (std::int64_t p = begin; p < end;) {  // runs of columns
        const std::int64_t source = sources[static_cast<std::size_t>(p)];
        std::int64_t next = p + 1;
        while (next < end && sources[static_cast<std::size_t>(next)] == source + next - p) ++next;
        into_lanes(from + source, row_step, n, next - p, to + p * n);
        p = next;
      }
    }
  }
};

// A unit of a plan: rows of a group of some images, and a slice of the channels of the result.
struct Part {
  Part(const Plan& of, std::int64_t unit)
      : plan(of), slice(unit % plan.slices), first(unit / (plan.slices * plan.parts * plan.c.groups) * plan.together),
        group(unit / (plan.slices * plan.parts) % plan.c.groups), begin(unit / plan.slices % plan.parts * plan.rows),
        rows(std::min(plan.rows, plan.all_rows - begin)), images(std::min(plan.together, plan.c.images - first)) {}

  // The blocks of the slice.
  template <class T>
  Range blocks(const Weights& left) const {
    const std::int64_t all = plan.lanes ? left.lane_blocks<T>() : left.blocks<T>();
    return {slice * all / plan.slices, (slice + 1) * all / plan.slices};
  }

  // Stores the product of the slice's weights, packed as the plan says, with copies.
  template <bool kPacked, class T>
  void multiply(const Weights& left, const T* weights, const T* copies, const Columns& columns, const T* bias, T* work,
                T* out) const {
    if (plan.lanes)
      left.multiply_lanes(blocks<T>(left), weights, copies, columns, bias, work, out);
    else
      left.multiply<kPacked>(blocks<T>(left), weights, copies, columns, plan.panels, bias, work, out);
  }
  std::int64_t first_block() const { return first * plan.c.groups + group; }
  // Calls body(number of the image in the part, group of the image).
  template <class F>
  void for_images(F body) const {
    for (std::int64_t each = 0; each < images; ++each) body(each, (first + each) * plan.c.groups + group);
  }
  // Copies the channels of a group of an image of x, each `channel_of_copy` elements, and zeros after the last one.
  template <class T>
  void copy_channels(const T* x, std::int64_t block, std::int64_t channel_of_copy, T* copy) const {
    const std::int64_t channels = plan.c.in;
    const PaddedRows padded{begin, plan.rows + plan.h.reach(), plan.row};
    for (std::int64_t channel = 0; channel < channels; ++channel)
      padded.copy_input(plan.h, plan.w, x + (block * channels + channel) * plan.pixels,
                        copy + channel * channel_of_copy);
    std::fill(copy + channels * channel_of_copy, copy + plan.copy, T(0));
  }
  Columns columns(Range of_rows, Range places, std::int64_t y, std::int64_t y_step, std::int64_t x, std::int64_t x_step,
                  std::int64_t width, std::int64_t pixels, std::int64_t image) const {
    return {images, plan.copy, plan.row, plan.gathered || plan.lanes, of_rows, places, y, y_step, x, x_step,
            width,  pixels,    image};
  }

  const Plan& plan;
  std::int64_t slice;
  std::int64_t first, group;  // the first image, the group
  std::int64_t begin, rows;   // in the images
  std::int64_t images;
};

}  // namespace lockstep::LOCKSTEP_KERNELS::convolution
