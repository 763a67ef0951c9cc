// Canonical sums over ranks: in blocks that fit the first-level cache. Each block is reduced like a binary counter, so
// that any number of inputs needs few spare blocks and is summed in pairs, then pairs of pairs.
#include <bit>
#include <cstring>
#include <type_traits>

#include "lockstep/tensor/cpu/loops_internal.h"
#include "lockstep/tensor/kernels/wide_internal.h"
#include "lockstep/tensor/ops/combine_internal.h"

namespace lockstep::LOCKSTEP_KERNELS {
namespace {

constexpr std::int64_t kBlock = 256;                                      // elements of a block
constexpr int kLevels = std::bit_width(unsigned{raw::kMaxCombined}) + 1;  // blocks that a counter holds at most

template <raw::CombineOp kOp, class W>
[[gnu::always_inline]] inline W join(W a, W b) {
  if constexpr (kOp == raw::CombineOp::kSum) return static_cast<W>(a + b);
  if constexpr (kOp == raw::CombineOp::kProduct) return static_cast<W>(a * b);
  if constexpr (kOp == raw::CombineOp::kMin) return a < b || a != a ? a : b;  // a NaN stays
  if constexpr (kOp == raw::CombineOp::kMax) return a > b || a != a ? a : b;
}

template <raw::CombineOp kOp, class W>
void join_blocks(W* a, const W* b, std::int64_t count) {
  LOCKSTEP_EACH_ELEMENT
  for (std::int64_t i = 0; i < count; ++i) a[i] = join<kOp>(a[i], b[i]);
}

// The canonical combination of N values, a power of two.
template <raw::CombineOp kOp, int N, class W>
[[gnu::always_inline]] inline W join_all(const W* values) {
  if constexpr (N == 1)
    return values[0];
  else
    return join<kOp>(join_all<kOp, N / 2>(values), join_all<kOp, N / 2>(values + N / 2));
}

// Combines N inputs into one output or N outputs, in one pass: the usual case, at memory bandwidth.
template <class T, raw::CombineOp kOp, int N>
void combine_few(const raw::Combine& c, std::int64_t first, std::int64_t count, Wide<T> scale) {
  const T* in[N];
  for (int k = 0; k < N; ++k) in[k] = static_cast<const T*>(c.inputs[static_cast<std::size_t>(k)]) + first;
  const auto run = [&]<int kOuts>(std::integral_constant<int, kOuts>) {
    T* out[kOuts];
    for (int k = 0; k < kOuts; ++k) out[k] = static_cast<T*>(c.outputs[static_cast<std::size_t>(k)]) + first;
    LOCKSTEP_EACH_ELEMENT
    for (std::int64_t i = 0; i < count; ++i) {
      Wide<T> values[N];
      for (int k = 0; k < N; ++k) values[k] = widen(in[k][i]);
      Wide<T> total = join_all<kOp, N>(values);
      if constexpr (std::is_floating_point_v<Wide<T>>) total *= scale;  // integers are not scaled
      const T y = narrow<T>(total);
      for (int k = 0; k < kOuts; ++k) out[k][i] = y;
    }
  };
  if (c.outputs.size() == 1)
    run(std::integral_constant<int, 1>{});
  else
    run(std::integral_constant<int, N>{});
}

// Stores the canonical combination of one block in blocks[0].
template <class T, raw::CombineOp kOp>
void combine_block(const raw::Combine& c, std::int64_t first, std::int64_t count, Wide<T> (*blocks)[kBlock]) {
  int height = 0;
  for (std::size_t i = 0; i < c.inputs.size(); ++i) {
    const T* in = as<T>(c.inputs[i]) + first;
    for (std::int64_t k = 0; k < count; ++k) blocks[height][k] = widen(in[k]);
    ++height;
    if (c.in_turn && i > 0) join_blocks<kOp>(blocks[0], blocks[--height], count);
    for (std::size_t done = i + 1; done % 2 == 0 && !c.in_turn; done /= 2, --height)  // a pair is complete
      join_blocks<kOp>(blocks[height - 2], blocks[height - 1], count);
  }
  for (; height > 1; --height) join_blocks<kOp>(blocks[height - 2], blocks[height - 1], count);
}

template <class T, raw::CombineOp kOp>
void combine_all(const raw::Combine& c, std::int64_t first, std::int64_t count) {
  const auto scale = static_cast<Wide<T>>(c.scale);
  const std::size_t inputs = c.inputs.size(), outputs = c.outputs.size();
  if (outputs == 1 || outputs == inputs) {
    if (inputs == 2) return combine_few<T, kOp, 2>(c, first, count, scale);
    if constexpr (std::is_same_v<T, float> || std::is_same_v<T, double>) {
      if (inputs == 4 && !c.in_turn) return combine_few<T, kOp, 4>(c, first, count, scale);
      if (inputs == 8 && !c.in_turn) return combine_few<T, kOp, 8>(c, first, count, scale);
    }
  }
  alignas(64) Wide<T> blocks[kLevels][kBlock];
  alignas(64) T result[kBlock];
  for (std::int64_t at = first; at < first + count; at += kBlock) {
    const std::int64_t n = first + count - at < kBlock ? first + count - at : kBlock;
    combine_block<T, kOp>(c, at, n, blocks);
    for (std::int64_t k = 0; k < n; ++k)
      result[k] = narrow<T>(c.scale == 1 ? blocks[0][k] : static_cast<Wide<T>>(blocks[0][k] * scale));
    for (void* out : c.outputs) std::memcpy(as<T>(out) + at, result, static_cast<std::size_t>(n) * sizeof(T));
  }
}

template <class T>
void combine_type(const raw::Combine& c, std::int64_t first, std::int64_t count) {
  switch (c.op) {
    case raw::CombineOp::kSum:
      return combine_all<T, raw::CombineOp::kSum>(c, first, count);
    case raw::CombineOp::kMin:
      return combine_all<T, raw::CombineOp::kMin>(c, first, count);
    case raw::CombineOp::kMax:
      return combine_all<T, raw::CombineOp::kMax>(c, first, count);
    case raw::CombineOp::kProduct:
      return combine_all<T, raw::CombineOp::kProduct>(c, first, count);
  }
}

}  // namespace

void combine(const raw::Combine& c, std::int64_t first, std::int64_t count) {
  for_any(c.dtype, [&]<class T>(T) {
    combine_type<std::conditional_t<std::is_same_v<T, bool>, std::uint8_t, T>>(c, first, count);  // a bool is 0 or 1
  });
}

}  // namespace lockstep::LOCKSTEP_KERNELS
