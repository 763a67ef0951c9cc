// Reductions over the middle of (outer, n, inner). The order in which elements are joined depends on the shape alone.
//
// A reduction is a functor R: R::Sum, a type of whole words; start(), the sum of no elements; add(sum, at, output, r),
// which joins input element `at`, the r-th of that output; join(a, b); finish(output, sum), which writes the result.
#pragma once

#include <algorithm>

#include "lockstep/tensor/cuda/divisor_internal.h"
#include "lockstep/tensor/cuda/launch_internal.h"

namespace lockstep::LOCKSTEP_KERNELS {

namespace detail {

inline constexpr std::int64_t kWantedBlocks = 1024;  // enough to keep a large device busy
inline constexpr std::int64_t kLongest = 512;  // maximum elements of a thread in sequence: keeps rounding errors small
inline constexpr std::int64_t kShortest = 16;  // minimum elements of a thread if n is split (a second launch)
inline constexpr std::int64_t kOfOneThread = 32;  // longest n for one thread per output, if there are many outputs
inline constexpr std::int64_t kFew = 2;           // longest n for one thread per output in any case
inline constexpr int kUnderWay = 8;               // elements that a thread loads before it joins the first one

// The positions of an output's elements.
struct Outputs {
  explicit Outputs(const Rows& rows) : inner(rows.inner), by_inner(rows.inner), span(rows.n * rows.inner) {}
  std::int64_t inner;  // distance between elements
  Divisor by_inner;
  std::int64_t span;
  DEVICE_ONLY std::int64_t origin(std::int64_t output) const {
    const Quotient at = by_inner.divide(output);
    return at.whole * span + at.rest;
  }
};

// A thread's share of an output: elements next, next + step, ...
struct Share {
  std::int64_t output, origin, inner;
  std::int64_t next, end, step;
};

// Joins a share, N elements at a time while possible, then fewer.
template <int N, class R>
DEVICE_ONLY void add_share(const R& reduction, typename R::Sum& sum, Share& share) {
  ONE_BY_ONE
  for (; share.next + (N - 1) * share.step < share.end; share.next += N * share.step) {
    UNROLL_ALL
    for (int j = 0; j < N; ++j) {
      const std::int64_t r = share.next + j * share.step;
      reduction.add(sum, share.origin + r * share.inner, share.output, r);
    }
  }
  if constexpr (N > 1) add_share<(N + 3) / 4>(reduction, sum, share);
}

// The partition of a reduction: blocks of `lanes` neighbouring outputs, and n into `parts`.
struct Cut {
  explicit Cut(const Rows& rows) : outputs(rows.outer * rows.inner), n(rows.n) {
    while (lanes() < kWarp && lanes() * 2 <= rows.inner) ++lane_bits;
    const std::int64_t blocks = (outputs + lanes() - 1) / lanes();
    groups = Divisor(blocks);
    const std::int64_t wanted = std::min(kWantedBlocks / std::max<std::int64_t>(blocks, 1), each() / kShortest);
    cut_into(std::max({std::int64_t{1}, wanted, (each() + kLongest - 1) / kLongest}));
  }
  // Splits n > 0 into `wanted` parts, or fewer if some would be empty.
  void cut_into(std::int64_t wanted) {
    length = (each() + wanted - 1) / wanted * step();
    parts = (n + length - 1) / length;
  }
  std::int64_t each() const { return (n + step() - 1) / step(); }  // elements of a thread if there is one part
  HOST_DEVICE int lanes() const { return 1 << lane_bits; }
  HOST_DEVICE int step() const { return kThreads >> lane_bits; }

  std::int64_t outputs, n, parts = 1, length = 1;
  Divisor groups;
  int lane_bits = 0;
};

template <class R>
struct ReduceBlock {
  using Sum = typename R::Sum;
  R reduction;
  Outputs outputs;
  Cut cut;
  Sum* partials;  // (parts, outputs), or null: the sums are final

  DEVICE_ONLY void operator()(const Block& block) const {
    const Quotient at = cut.groups.divide(block.index());
    const std::int64_t part = at.whole, first = at.rest << cut.lane_bits, begin = part * cut.length;
    const int lanes = cut.lanes();
    const auto join = [this](const Sum& a, const Sum& b) { return reduction.join(a, b); };
    const auto put = [&](int lane, const Sum& sum) {
      if (lane >= lanes || first + lane >= cut.outputs) return;
      if (partials)
        partials[part * cut.outputs + first + lane] = sum;
      else
        reduction.finish(first + lane, sum);
    };
    PerThread<Sum> sums;
    block.each([&](int thread) {
      Sum sum = reduction.start();
      const std::int64_t output = first + (thread & (lanes - 1));
      if (output < cut.outputs) {
        Share share{output,
                    outputs.origin(output),
                    outputs.inner,
                    begin + (thread >> cut.lane_bits),
                    cut.n < begin + cut.length ? cut.n : begin + cut.length,
                    cut.step()};
        if (lanes == 1) {  // a row: the step is a compile-time constant
          share.inner = 1;
          share.step = kThreads;
          add_share<kUnderWay>(reduction, sum, share);
        } else {
          add_share<kUnderWay>(reduction, sum, share);
        }
      }
      sums[thread] = sum;
    });
    if (lanes == 1) {
      const Sum total = block.reduce(sums, join);
      block.each([&](int thread) { put(thread, total); });
    } else {
      block.reduce_lanes(sums, lanes, join);
      block.each([&](int thread) { put(thread, sums[thread]); });
    }
  }
};

// One thread per output, elements in order.
template <class R>
struct ReduceElements {
  R reduction;
  Outputs outputs;
  std::int64_t n;
  DEVICE_ONLY void operator()(std::int64_t output) const {
    auto sum = reduction.start();
    Share share{output, outputs.origin(output), outputs.inner, 0, n, 1};
    add_share<kUnderWay>(reduction, sum, share);
    reduction.finish(output, sum);
  }
};

// The second launch, over the parts.
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
  const detail::Outputs outputs(rows);
  const std::int64_t count = rows.outer * rows.inner;
  if (rows.n <= detail::kFew || (rows.n <= detail::kOfOneThread && count > detail::kWantedBlocks))
    return launch_elements(op, count, detail::ReduceElements<R>{reduction, outputs, rows.n});
  const detail::Cut cut(rows);
  const std::int64_t blocks = cut.groups.size();
  if (cut.parts == 1) return launch_blocks(op, blocks, detail::ReduceBlock<R>{reduction, outputs, cut, nullptr});
  const Scratch partials(cut.parts * cut.outputs * static_cast<std::int64_t>(sizeof(Sum)));
  launch_blocks(op, blocks * cut.parts, detail::ReduceBlock<R>{reduction, outputs, cut, partials.as<Sum>()});
  using Second = detail::JoinParts<R>;
  const Rows over{.outer = 1, .n = cut.parts, .inner = cut.outputs};
  detail::Cut whole(over);
  whole.cut_into(1);
  launch_blocks(
      op, whole.groups.size(),
      detail::ReduceBlock<Second>{Second{reduction, partials.as<Sum>()}, detail::Outputs(over), whole, nullptr});
}

}  // namespace lockstep::LOCKSTEP_KERNELS
