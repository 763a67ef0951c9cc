// Runs contiguous inner loops over strided operands. Operands that are not contiguous are gathered into small tiles
// first, so a kernel is one loop over contiguous memory with one code path: equal values give equal bits at any
// position.
#pragma once

#include <cstdint>
#include <cstring>
#include <tuple>
#include <type_traits>
#include <utility>

#include "lockstep/base/threads.h"
#include "lockstep/tensor/kernels/for_dtype_internal.h"

// Before a loop whose inputs and outputs may be the same memory but never overlap shifted, so vectorising is safe.
#if defined(__clang__)
#pragma clang diagnostic ignored "-Wpass-failed"  // without optimisation no loop is vectorised
#define LOCKSTEP_EACH_ELEMENT _Pragma("clang loop vectorize(assume_safety)")
#else
#define LOCKSTEP_EACH_ELEMENT _Pragma("GCC ivdep")
#endif

namespace lockstep::LOCKSTEP_KERNELS {

inline constexpr std::int64_t kTile = 256;              // elements of a tile
inline constexpr std::int64_t kParallelFrom = 1 << 16;  // minimum elements of an operation that uses several threads
inline constexpr std::int64_t kChunk = 1 << 15;         // elements that a thread takes at a time, about

// parallel_for over a lambda.
template <class F>
void for_chunks(std::int64_t chunks, F body) {
  parallel_for(
      chunks, [](void* context, std::int64_t chunk) { (*static_cast<F*>(context))(chunk); }, &body);
}

// Calls body(begin, end) for parts of [0, count), units of `work` elements each, on several threads if worthwhile: equal
// parts, four or a multiple of it, so that a few threads get the same work.
// The pool gets a copy of `body`: the compiler keeps the captures of the other one in registers.
template <class F>
void for_parts(std::int64_t count, std::int64_t work, F body) {
  if (count * work < kParallelFrom) return body(std::int64_t{0}, count);
  constexpr std::int64_t kLine = 64;  // a part of elements begins with a cache line
  const std::int64_t parts = (count * work / kChunk + 4) / 4 * 4, even = count / parts > 0 ? count / parts : 1;
  const std::int64_t group = work == 1 ? (even + kLine - 1) / kLine * kLine : even;
  for_chunks((count + group - 1) / group, [=](std::int64_t chunk) {
    body(chunk * group, (chunk + 1) * group < count ? (chunk + 1) * group : count);
  });
}

// Calls body(unit) for all `count` units, likewise.
template <class F>
void for_units(std::int64_t count, std::int64_t work, F body) {
  for_parts(count, work, [body](std::int64_t begin, std::int64_t end) {
    for (std::int64_t unit = begin; unit < end; ++unit) body(unit);
  });
}

// out[i] = fast(i) where is_usual(i), else slow(i). Blocks where all are usual are vector code.
template <class T, class IsUsual, class Fast, class Slow>
void for_usual(std::int64_t count, T* out, IsUsual is_usual, Fast fast, Slow slow) {
  for (std::int64_t begin = 0; begin < count; begin += kTile) {
    const std::int64_t end = count - begin < kTile ? count : begin + kTile;
    std::int32_t unusual = 0;  // of the width of a float, so that this loop is vector code as well
    for (std::int64_t i = begin; i < end; ++i) unusual += is_usual(i) ? 0 : 1;
    for (std::int64_t i = begin; i < end && unusual != 0; ++i) out[i] = is_usual(i) ? fast(i) : slow(i);
    for (std::int64_t i = begin; i < end && unusual == 0; ++i) out[i] = fast(i);
  }
}

namespace detail {

inline constexpr std::int64_t kPiece = 1024;  // elements of the tile of an operand that is not contiguous

// One operand of type T in a row: its tile and the row's address.
template <class T>
struct Cursor {
  T* row;
  std::int64_t stride;
  bool dense;
  alignas(64) T tile[kPiece];

  Cursor() {}  // leaves the tile uninitialised: a tuple would otherwise fill it with zeros

  void enter(T* start, std::int64_t step, std::int64_t length) {
    row = start;
    stride = step;
    dense = step == 1;
    if (step == 0) {  // a repeated element: the tile is filled once per row
      for (std::int64_t i = 0; i < (length < kPiece ? length : kPiece); ++i) tile[i] = *start;
    }
  }
  const T* load(std::int64_t at, std::int64_t count) {
    if (dense) return row + at;
    if (stride != 0) {
      const T* from = row + at * stride;
      for (std::int64_t i = 0; i < count; ++i) tile[i] = from[i * stride];
    }
    return tile;
  }
  T* target(std::int64_t at) { return dense ? row + at : tile; }
  void store(std::int64_t at, std::int64_t count) {
    if (dense) return;
    T* to = row + at * stride;
    for (std::int64_t i = 0; i < count; ++i) to[i * stride] = tile[i];
  }
};

template <int N, class F, class Out, class... In, std::size_t... I>
void run_row(const Loop<N>& loop, const std::int64_t* offsets, std::int64_t from, std::int64_t count, F& body,
             std::index_sequence<I...>, Out*, In*...) {
  const int inner = loop.dims - 1;
  Cursor<Out> out;
  std::tuple<Cursor<In>...> in;
  const auto start = [&]<class T>(T*, int k) {
    return static_cast<T*>(loop.data[k]) + offsets[k] + from * loop.strides[k][inner];
  };
  out.enter(start(static_cast<Out*>(nullptr), 0), loop.strides[0][inner], 0);
  (std::get<I>(in).enter(start(static_cast<In*>(nullptr), static_cast<int>(I) + 1), loop.strides[I + 1][inner], count),
   ...);
  const bool all_dense = out.dense && (std::get<I>(in).dense && ...);
  const std::int64_t step = all_dense ? count : kPiece;
  for (std::int64_t at = 0; at < count; at += step) {
    const std::int64_t length = count - at < step ? count - at : step;
    body(length, out.target(at), std::get<I>(in).load(at, length)...);
    out.store(at, length);
  }
}

// The flat range [begin, end) of the loop nest, row by row.
template <class Out, class... In, int N, class F>
void run_range(const Loop<N>& loop, std::int64_t begin, std::int64_t end, F& body) {
  const int inner = loop.dims - 1;
  std::int64_t index[kMaxDims], offsets[N] = {};
  if (inner == 0) {  // the usual case: one row
    return run_row(loop, offsets, begin, end - begin, body, std::index_sequence_for<In...>{},
                   static_cast<Out*>(nullptr), static_cast<In*>(nullptr)...);
  }
  std::int64_t rest = begin;
  for (int d = inner; d >= 0; --d) {
    index[d] = rest == 0 ? 0 : rest % loop.shape[d];  // the usual case avoids the division
    rest = rest == 0 ? 0 : rest / loop.shape[d];
    if (d == inner) continue;
    for (int k = 0; k < N; ++k) offsets[k] += index[d] * loop.strides[k][d];
  }
  std::int64_t column = index[inner];
  for (std::int64_t at = begin; at < end;) {
    const std::int64_t left = loop.shape[inner] - column;
    const std::int64_t count = left < end - at ? left : end - at;
    run_row(loop, offsets, column, count, body, std::index_sequence_for<In...>{}, static_cast<Out*>(nullptr),
            static_cast<In*>(nullptr)...);
    at += count;
    column = 0;
    for (int d = inner - 1; d >= 0; --d) {  // next row
      for (int k = 0; k < N; ++k) offsets[k] += loop.strides[k][d];
      if (++index[d] < loop.shape[d]) break;
      for (int k = 0; k < N; ++k) offsets[k] -= index[d] * loop.strides[k][d];
      index[d] = 0;
    }
  }
}

}  // namespace detail

// Calls body(count, out, in...) on contiguous pieces until every element is written. The result of `body` must depend
// on an element's values alone.
template <class Out, class... In, int N, class F>
void run_loop(const Loop<N>& loop, F body) {
  static_assert(N == 1 + sizeof...(In));
  if (loop.numel == 0) return;
  for_parts(loop.numel, 1,
            [&](std::int64_t begin, std::int64_t end) { detail::run_range<Out, In...>(loop, begin, end, body); });
}

}  // namespace lockstep::LOCKSTEP_KERNELS
