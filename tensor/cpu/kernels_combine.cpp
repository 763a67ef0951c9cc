// Canonical sums over ranks: in blocks that fit the first-level cache. Each block is reduced like a binary counter, so
// that any number of inputs needs few spare blocks and is summed in pairs, then pairs of pairs.
#include <bit>
#include <cstring>
#include <type_traits>

#include "lockstep/tensor/combine_internal.h"
#include "lockstep/tensor/cpu/loops_internal.h"
#include "lockstep/tensor/wide_internal.h"

namespace lockstep::LOCKSTEP_KERNELS {
namespace {

constexpr std::int64_t kBlock = 256;                                      // elements of a block
constexpr int kLevels = std::bit_width(unsigned{raw::kMaxCombined}) + 1;  // blocks that a counter holds at most

// Inputs and outputs of the loops below may be the same memory but never overlap shifted, so vectorising is safe.
#if defined(__clang__)
#pragma clang diagnostic ignored "-Wpass-failed"  // without optimisation no loop is vectorised
#define LOCKSTEP_EACH_ELEMENT _Pragma("clang loop vectorize(assume_safety)")
#else
#define LOCKSTEP_EACH_ELEMENT _Pragma("GCC ivdep")
#endif

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

// Combines two inputs into two outputs in one pass: the usual case, at memory bandwidth.
template <class T, raw::CombineOp kOp, bool kScaled>
void combine_pair(const T* a, const T* b, T* out0, T* out1, std::int64_t count, Wide<T> scale) {
  LOCKSTEP_EACH_ELEMENT
  for (std::int64_t i = 0; i < count; ++i) {
    Wide<T> x = join<kOp>(widen(a[i]), widen(b[i]));
    if constexpr (kScaled) x = static_cast<Wide<T>>(x * scale);
    const T y = narrow<T>(x);
    out0[i] = y;
    out1[i] = y;
  }
}

// The canonical combination of N values, a power of two.
template <raw::CombineOp kOp, int N, class W>
[[gnu::always_inline]] inline W join_all(const W* values) {
  if constexpr (N == 1)
    return values[0];
  else
    return join<kOp>(join_all<kOp, N / 2>(values), join_all<kOp, N / 2>(values + N / 2));
}

// Combines N inputs into one output or N outputs, in one pass.
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
      const T y = narrow<T>(static_cast<Wide<T>>(join_all<kOp, N>(values) * scale));
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
    const T* in = static_cast<const T*>(c.inputs[i]) + first;
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
  if (c.inputs.size() == 2 && !c.outputs.empty() && c.outputs.size() <= 2) {
    const T *a = static_cast<const T*>(c.inputs[0]) + first, *b = static_cast<const T*>(c.inputs[1]) + first;
    T *out0 = static_cast<T*>(c.outputs.front()) + first, *out1 = static_cast<T*>(c.outputs.back()) + first;
    if (c.scale == 1) return combine_pair<T, kOp, false>(a, b, out0, out1, count, scale);
    return combine_pair<T, kOp, true>(a, b, out0, out1, count, scale);
  }
  if constexpr (std::is_same_v<T, float> || std::is_same_v<T, double>) {
    const bool usual = !c.in_turn && (c.outputs.size() == 1 || c.outputs.size() == c.inputs.size());
    if (c.inputs.size() == 4 && usual) return combine_few<T, kOp, 4>(c, first, count, scale);
    if (c.inputs.size() == 8 && usual) return combine_few<T, kOp, 8>(c, first, count, scale);
  }
  alignas(64) Wide<T> blocks[kLevels][kBlock];
  alignas(64) T result[kBlock];
  for (std::int64_t at = first; at < first + count; at += kBlock) {
    const std::int64_t n = first + count - at < kBlock ? first + count - at : kBlock;
    combine_block<T, kOp>(c, at, n, blocks);
    for (std::int64_t k = 0; k < n; ++k)
      result[k] = narrow<T>(c.scale == 1 ? blocks[0][k] : static_cast<Wide<T>>(blocks[0][k] * scale));
    for (void* out : c.outputs) std::memcpy(static_cast<T*>(out) + at, result, static_cast<std::size_t>(n) * sizeof(T));
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
  switch (c.dtype) {
    case DType::kBool:
      return;  // rejected by the wrapper
    case DType::kUInt8:
      return combine_type<std::uint8_t>(c, first, count);
    case DType::kInt32:
      return combine_type<std::int32_t>(c, first, count);
    case DType::kInt64:
      return combine_type<std::int64_t>(c, first, count);
    case DType::kFloat16:
      return combine_type<Half>(c, first, count);
    case DType::kBFloat16:
      return combine_type<BFloat16>(c, first, count);
    case DType::kFloat32:
      return combine_type<float>(c, first, count);
    case DType::kFloat64:
      return combine_type<double>(c, first, count);
  }
}

}  // namespace lockstep::LOCKSTEP_KERNELS
