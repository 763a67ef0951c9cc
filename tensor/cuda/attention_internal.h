// Parts that all kernels of attention share: operands as a GPU reads them, the mask and dropout of a score, and a sum
// that backward needs. Included by kernels only, inside their namespace.
#pragma once

#include <limits>

#include "lockstep/tensor/cuda/divisor_internal.h"
#include "lockstep/tensor/cuda/launch_internal.h"
#include "lockstep/tensor/cuda/tile_internal.h"
#include "lockstep/tensor/ops/attention_internal.h"
#include "lockstep/tensor/random/philox_internal.h"

namespace lockstep::LOCKSTEP_KERNELS {

// A raw::AttentionOperand of elements T.
template <class T>
struct AttentionRows {
  T* data;
  std::int64_t row, column;
  std::int64_t batch[kMaxDims];

  explicit AttentionRows(const raw::AttentionOperand& x)
      : data(static_cast<T*>(x.data)), row(x.row), column(x.column), batch() {
    for (std::size_t i = 0; i < x.batch.size(); ++i) batch[i] = x.batch[i];
  }
};

// A raw::Attention of elements T; `W` is the type of the mask, of log_sums and of all sums.
template <class T>
struct AttentionOf {
  using W = Wide<T>;

  std::int64_t time, time_k, dim, dim_v, count;
  int dims;
  Divisor sizes[kMaxDims];
  double scale;
  bool causal, bool_mask;
  double keep;
  random::Position position;
  AttentionRows<T> q, k, v, out, grad, grad_q, grad_k, grad_v;
  AttentionRows<void> mask;
  W* log_sums;
  W* products = nullptr;  // (count, time), of backward: sums of grad * out

  explicit AttentionOf(const raw::Attention& a)
      : time(a.time), time_k(a.time_k), dim(a.dim), dim_v(a.dim_v), count(a.count), dims(a.batch.dim()), sizes(),
        scale(a.scale), causal(a.causal), bool_mask(a.bool_mask), keep(a.keep), position(a.position), q(a.q), k(a.k),
        v(a.v), out(a.out), grad(a.grad), grad_q(a.grad_q), grad_k(a.grad_k), grad_v(a.grad_v), mask(a.mask),
        log_sums(static_cast<W*>(a.log_sums)) {
    for (std::size_t i = 0; i < a.batch.size(); ++i) sizes[i] = Divisor(a.batch[i]);
  }

  // The first element of an operand's part of a problem, as an offset.
  template <class E>
  DEVICE_ONLY std::int64_t origin(const AttentionRows<E>& x, std::int64_t problem) const {
    std::int64_t offset = 0;
    for (int d = dims - 1; d >= 0; --d) {
      const Quotient at = sizes[d].divide(problem);
      offset += at.rest * x.batch[d];
      problem = at.whole;
    }
    return offset;
  }
  // An operand's part of a problem.
  template <class E>
  DEVICE_ONLY MatrixRows<E> rows(const AttentionRows<E>& x, std::int64_t problem, std::int64_t rows,
                                 std::int64_t columns) const {
    return {x.data + origin(x, problem), x.row, rows, columns};
  }

  // The number of consecutive keys from `key` to which a query attends, at most `limit`.
  DEVICE_ONLY int reach(std::int64_t query, std::int64_t key, int limit) const {
    const std::int64_t keys = keys_of(query + 1) - key;
    return query >= time || keys < 0 ? 0 : keys < limit ? static_cast<int>(keys) : limit;
  }
  // The number of keys to which queries before `end` attend, and the first query that attends to key `key`.
  DEVICE_ONLY std::int64_t keys_of(std::int64_t end) const { return causal && end < time_k ? end : time_k; }
  DEVICE_ONLY std::int64_t first_query_of(std::int64_t key) const { return causal ? key : 0; }
};

// The mask of a problem, as numbers that are added to its scores.
template <class T>
class AttentionMask {
 public:
  using W = Wide<T>;

  DEVICE_ONLY AttentionMask(const AttentionOf<T>& a, std::int64_t problem)
      : data_(a.mask.data), origin_(a.mask.data ? a.origin(a.mask, problem) : 0), row_(a.mask.row),
        column_(a.mask.column), is_bool_(a.bool_mask) {}
  DEVICE_ONLY bool is_present() const { return data_ != nullptr; }
  DEVICE_ONLY W operator()(std::int64_t query, std::int64_t key) const {
    const std::int64_t at = origin_ + query * row_ + key * column_;
    if (!is_bool_) return static_cast<const W*>(data_)[at];
    return static_cast<const bool*>(data_)[at] ? W(0) : -std::numeric_limits<W>::infinity();
  }

 private:
  const void* data_;
  std::int64_t origin_, row_, column_;
  bool is_bool_;
};

// The dropout factors of the weights of one query and the `kCount` keys from `key`, a multiple of kCount.
template <int kCount, class T>
DEVICE_ONLY void dropout_factors(const AttentionOf<T>& a, const random::Position& position, std::int64_t problem,
                                 std::int64_t query, std::int64_t key, Wide<T>* factors) {
  const std::int64_t block = (problem * a.time + query) * ((a.time_k + 3) / 4) + key / 4;
  const PhiloxBlock bits = philox(position, static_cast<std::uint64_t>(block));
  const auto kept = static_cast<Wide<T>>(a.keep > 0 ? 1 / a.keep : 0);
  UNROLL_ALL
  for (int j = 0; j < kCount; ++j) {
    const std::uint32_t word = kCount == 4 || key % 4 == 0 ? bits.words[j] : bits.words[j + 4 - kCount];
    factors[j] = static_cast<double>(word) * 0x1p-32 < a.keep ? kept : Wide<T>(0);
  }
}

// products = sums of grad * out, for backward; 16 threads for each query. Each has several queries of one problem, so
// that finding the problem takes little of its time.
template <class T>
struct AttentionProducts {
  using W = Wide<T>;
  static constexpr int kLanes = 16, kRows = kThreads / kLanes, kEach = 8, kQueries = kRows * kEach;
  struct Sums {
    W at[kEach];
  };
  AttentionOf<T> a;
  Divisor blocks;  // of a problem

  DEVICE_ONLY void operator()(const Block& block) const {
    const Quotient place = blocks.divide(block.index());
    const std::int64_t problem = place.whole, first = place.rest * kQueries;
    PerThread<Sums> sums;
    block.each_alone([&](int thread) {
      const T* const grad = a.grad.data + a.origin(a.grad, problem);
      const T* const out = a.out.data + a.origin(a.out, problem);
      UNROLL_ALL
      for (int i = 0; i < kEach; ++i) {
        const std::int64_t query = first + i * kRows + thread / kLanes;
        W sum = 0;
        for (std::int64_t j = thread % kLanes; query < a.time && j < a.dim_v; j += kLanes)
          sum += widen(grad[query * a.grad.row + j]) * widen(out[query * a.out.row + j]);
        sums[thread].at[i] = sum;
      }
    });
    block.template reduce_groups<kLanes>(sums, [](Sums x, const Sums& y) {
      UNROLL_ALL
      for (int i = 0; i < kEach; ++i) x.at[i] += y.at[i];
      return x;
    });
    block.each_alone([&](int thread) {
      UNROLL_ALL
      for (int i = 0; i < kEach; ++i) {
        const std::int64_t query = first + i * kRows + thread / kLanes;
        if (thread % kLanes == 0 && query < a.time) a.products[problem * a.time + query] = sums[thread].at[i];
      }
    });
  }
};

// The kernels for tensor cores, in kernels_attention_mma.cu. Each computes the result, or grad_q, or grad_k and grad_v,
// if the operands have a form for which there is a kernel, and returns false otherwise. `products` is the member of
// AttentionOf.
bool attention_by_mma(const raw::Attention& a, DType dtype);
bool attention_backward_queries_by_mma(const raw::Attention& a, DType dtype, float* products);
bool attention_backward_keys_by_mma(const raw::Attention& a, DType dtype, float* products);

}  // namespace lockstep::LOCKSTEP_KERNELS
