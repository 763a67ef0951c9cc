// Rows that fit into the registers of a block of threads. Included by kernels only, inside their namespace.
#pragma once

#include "lockstep/tensor/cuda/loops_internal.h"

namespace lockstep::LOCKSTEP_KERNELS {

// Rows of a matrix that a block of threads reads once and keeps in registers: one row of all threads, or one of each
// warp (kWidth threads of a row). The distribution of a row over threads, and so the order of sums, depends on its
// length alone: if an address is not aligned to 16 bytes, elements are read one by one.
template <class T, int kWidth>
class RegisterRows {
 public:
  static constexpr int kRows = kThreads / kWidth;  // of a block
  static constexpr int kPack = detail::kPackBytes / static_cast<int>(sizeof(T)), kPacks = kRows == 1 ? 4 : 8;
  static_assert(kWidth == kThreads || kWidth == kWarp);
  using Values = Pack<T, kPack>;
  static bool takes(std::int64_t n) { return n % kPack == 0 && n <= std::int64_t{kWidth} * kPack * kPacks; }
  static std::int64_t blocks(std::int64_t rows) { return (rows + kRows - 1) / kRows; }

  DEVICE_ONLY RegisterRows(const Block& block, const T* x, std::int64_t rows, std::int64_t n)
      : block_(block), rows_(rows), packs_(n / kPack) {
    const bool aligned = is_aligned(x);
    block_.each([&](int thread) {
      each_pack(thread,
                [&](Values& values, std::int64_t at, int) { values = load(x, aligned, row(thread) * packs_ + at); });
    });
  }
  DEVICE_ONLY std::int64_t row(int thread) const { return block_.index() * kRows + thread / kWidth; }

  // Joins term(value) of all values of a row, for each of its threads.
  template <class Join, class Term>
  DEVICE_ONLY PerThread<T> reduce(T start, Join join, Term term) {
    return reduce_with(*this, start, join, [&](T value, T) { return term(value); });
  }
  // Joins term(value, value of `other` at the same place).
  template <class Join, class Term>
  DEVICE_ONLY PerThread<T> reduce_with(RegisterRows& other, T start, Join join, Term term) {
    PerThread<T> sums;
    block_.each([&](int thread) {
      T sum = start;
      each_pack(thread, [&](Values& values, std::int64_t, int j) {
        const Values& others = other.share_[thread].packs[j];
        for (int k = 0; k < kPack; ++k) sum = join(sum, term(values.values[k], others.values[k]));
      });
      sums[thread] = sum;
    });
    if constexpr (kRows == 1) {
      const T total = block_.reduce(sums, join);
      block_.each([&](int thread) { sums[thread] = total; });
    } else {
      block_.reduce_warps(sums, join);
    }
    return sums;
  }
  // Replaces every value by f(thread, value).
  template <class F>
  DEVICE_ONLY void update(F f) {
    block_.each([&](int thread) {
      each_pack(thread, [&](Values& values, std::int64_t, int) {
        for (int j = 0; j < kPack; ++j) values.values[j] = f(thread, values.values[j]);
      });
    });
  }
  // Replaces every value by f(value, data[i]), where i is its place in the row.
  template <class F>
  DEVICE_ONLY void update_from(const T* data, F f) {
    const bool aligned = is_aligned(data);
    block_.each([&](int thread) {
      Share others;  // all loads before the first use
      each_pack(thread, [&](Values&, std::int64_t at, int j) { others.packs[j] = load(data, aligned, at); });
      each_pack(thread, [&](Values& values, std::int64_t, int j) {
        for (int k = 0; k < kPack; ++k) values.values[k] = f(values.values[k], others.packs[j].values[k]);
      });
    });
  }
  // y[row][i] = f(thread, value)
  template <class F>
  DEVICE_ONLY void store(T* y, F f) {
    store_with(*this, y, [&](int thread, T value, T) { return f(thread, value); });
  }
  // y[row][i] = f(thread, value, value of `other` at the same place)
  template <class F>
  DEVICE_ONLY void store_with(RegisterRows& other, T* y, F f) {
    const bool aligned = is_aligned(y);
    block_.each([&](int thread) {
      each_pack(thread, [&](Values& values, std::int64_t in_row, int j) {
        const Values& others = other.share_[thread].packs[j];
        const std::int64_t at = row(thread) * packs_ + in_row;
        Values out;
        for (int k = 0; k < kPack; ++k) out.values[k] = f(thread, values.values[k], others.values[k]);
        if (aligned)
          reinterpret_cast<Values*>(y)[at] = out;
        else
          for (int k = 0; k < kPack; ++k) y[at * kPack + k] = out.values[k];
      });
    });
  }
  // Runs step(thread, row) for one thread of every row.
  template <class Step>
  DEVICE_ONLY void once_per_row(Step step) const {
    block_.each([&](int thread) {
      if (thread % kWidth == 0 && row(thread) < rows_) step(thread, row(thread));
    });
  }

 private:
  struct Share {
    Values packs[kPacks];
  };
  DEVICE_ONLY static bool is_aligned(const T* data) {
    return reinterpret_cast<std::uintptr_t>(data) % detail::kPackBytes == 0;
  }
  DEVICE_ONLY static Values load(const T* data, bool aligned, std::int64_t at) {
    if (aligned) return reinterpret_cast<const Values*>(data)[at];
    Values out;
    for (int j = 0; j < kPack; ++j) out.values[j] = data[at * kPack + j];
    return out;
  }
  template <class F>
  DEVICE_ONLY void each_pack(int thread, F f) {
    if (row(thread) >= rows_) return;
    Share& own = share_[thread];
    UNROLL_ALL
    for (int j = 0; j < kPacks; ++j) {
      const std::int64_t at = std::int64_t{j} * kWidth + thread % kWidth;
      if (at < packs_) f(own.packs[j], at, j);
    }
  }

  const Block& block_;
  std::int64_t rows_, packs_;
  PerThread<Share> share_;
};

// Launches Rows<kWidth> with the narrowest width that takes rows of n elements. Returns false if none does.
template <class T, template <class, int> class Functor, class... Arguments>
bool launch_register_rows(const char* op, const Rows& rows, const Arguments&... arguments) {
  const auto launch = [&]<int kWidth>() {
    if (!RegisterRows<T, kWidth>::takes(rows.n)) return false;
    launch_blocks(op, RegisterRows<T, kWidth>::blocks(rows.outer), Functor<T, kWidth>{arguments...});
    return true;
  };
  return rows.inner == 1 && (launch.template operator()<kWarp>() || launch.template operator()<kThreads>());
}

}  // namespace lockstep::LOCKSTEP_KERNELS
