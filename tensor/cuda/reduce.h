// Reductions over the middle of (outer, n, inner). The order in which elements are joined follows from the shape alone.
//
// What is reduced is a functor R: R::Sum, a type of whole words; start(), the sum of nothing; add(sum, at, output, r), which
// joins input element `at`, the r-th of that output; join(a, b); finish(output, sum), which writes it.
#pragma once

#include <algorithm>

#include "lockstep/tensor/cuda/launch.h"

namespace lockstep::inline LOCKSTEP_ABI::LOCKSTEP_KERNELS {

namespace detail {

inline constexpr std::int64_t kWantedBlocks = 1024;  // to keep a large device busy
inline constexpr std::int64_t kLongest = 512;     // elements that one thread joins in turn: keeps rounding errors small
inline constexpr std::int64_t kShortest = 4;      // ... and that make another part worth its while
inline constexpr std::int64_t kOfOneThread = 32;  // elements of an output that a block of threads is too much for

// How a reduction is cut: blocks of `lanes` neighbouring outputs, and n into `parts`.
struct Cut {
  explicit Cut(const Rows& rows) : outputs(rows.outer * rows.inner) {
    while (lanes < kWarp && lanes * 2 <= rows.inner) lanes *= 2;
    groups = (outputs + lanes - 1) / lanes;
    const std::int64_t step = kThreads / lanes, each = (rows.n + step - 1) / step;
    const std::int64_t wanted = std::min(kWantedBlocks / std::max<std::int64_t>(groups, 1), each / kShortest);
    parts = std::max({std::int64_t{1}, wanted, (each + kLongest - 1) / kLongest});
    length = (each + parts - 1) / parts * step;
    parts = std::max<std::int64_t>((rows.n + length - 1) / std::max<std::int64_t>(length, 1), 1);
  }
  std::int64_t outputs, groups, parts, length = 1;
  int lanes = 1;
};

template <class R>
struct ReduceBlock {
  using Sum = typename R::Sum;
  R reduction;
  Rows rows;
  Cut cut;
  Sum* partials;  // (parts, outputs), or null: the sums are final

  DEVICE_ONLY void operator()(const Block& block) const {
    const std::int64_t part = block.index() / cut.groups, first = block.index() % cut.groups * cut.lanes;
    const std::int64_t begin = part * cut.length, end = rows.n < begin + cut.length ? rows.n : begin + cut.length;
    const int lanes = cut.lanes;
    const auto join = [this](const Sum& a, const Sum& b) { return reduction.join(a, b); };
    PerThread<Sum> sums;
    block.each([&](int thread) {
      Sum sum = reduction.start();
      const std::int64_t output = first + thread % lanes;
      if (output < cut.outputs) {
        const std::int64_t origin = output / rows.inner * rows.n * rows.inner + output % rows.inner;
        UNROLL
        for (std::int64_t r = begin + thread / lanes; r < end; r += kThreads / lanes)
          reduction.add(sum, origin + r * rows.inner, output, r);
      }
      sums[thread] = sum;
    });
    if (lanes == 1) {
      const Sum total = block.reduce(sums, join);
      block.each([&](int thread) { sums[thread] = total; });
    } else {
      block.reduce_lanes(sums, lanes, join);
    }
    block.each([&](int thread) {
      const std::int64_t output = first + thread;
      if (thread >= lanes || output >= cut.outputs) return;
      if (partials)
        partials[part * cut.outputs + output] = sums[thread];
      else
        reduction.finish(output, sums[thread]);
    });
  }
};

// Few elements for each output: by one thread, in their order.
template <class R>
struct ReduceElements {
  R reduction;
  Rows rows;
  DEVICE_ONLY void operator()(std::int64_t output) const {
    const std::int64_t origin = output / rows.inner * rows.n * rows.inner + output % rows.inner;
    auto sum = reduction.start();
    for (std::int64_t r = 0; r < rows.n; ++r) reduction.add(sum, origin + r * rows.inner, output, r);
    reduction.finish(output, sum);
  }
};

// The second round, over the parts.
template <class R>
struct JoinParts {
  using Sum = typename R::Sum;
  R reduction;
  const Sum* partials;
  DEVICE_ONLY Sum start() const { return reduction.start(); }
  DEVICE_ONLY void add(Sum& sum, std::int64_t at, std::int64_t, std::int64_t) const {
    sum = reduction.join(sum, partials[at]);
  }
  DEVICE_ONLY Sum join(const Sum& a, const Sum& b) const { return reduction.join(a, b); }
  DEVICE_ONLY void finish(std::int64_t output, const Sum& sum) const { reduction.finish(output, sum); }
};

}  // namespace detail

template <class R>
void launch_reduce(const char* op, const Rows& rows, const R& reduction) {
  using Sum = typename R::Sum;
  if (rows.n <= detail::kOfOneThread)
    return launch_elements(op, rows.outer * rows.inner, detail::ReduceElements<R>{reduction, rows});
  const detail::Cut cut(rows);
  if (cut.parts == 1) return launch_blocks(op, cut.groups, detail::ReduceBlock<R>{reduction, rows, cut, nullptr});
  const Scratch partials(cut.parts * cut.outputs * static_cast<std::int64_t>(sizeof(Sum)));
  launch_blocks(op, cut.groups * cut.parts, detail::ReduceBlock<R>{reduction, rows, cut, partials.as<Sum>()});
  using Second = detail::JoinParts<R>;
  const Rows over{.outer = 1, .n = cut.parts, .inner = cut.outputs};
  detail::Cut whole(over);
  whole.parts = 1;
  whole.length = over.n;
  launch_blocks(op, whole.groups,
                detail::ReduceBlock<Second>{Second{reduction, partials.as<Sum>()}, over, whole, nullptr});
}

}  // namespace lockstep::inline LOCKSTEP_ABI::LOCKSTEP_KERNELS
