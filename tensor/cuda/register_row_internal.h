// Rows that fit into the registers of a block of threads. Included by kernels only, inside their namespace.
#pragma once

#include "lockstep/tensor/cuda/loops_internal.h"

namespace lockstep::LOCKSTEP_KERNELS {

// A row that a block of threads reads once and keeps in registers. Its distribution over threads, and so the order of
// sums, depends on its length alone: if the address is not aligned to 16 bytes, elements are read one by one.
template <class T>
class RegisterRow {
 public:
  static constexpr int kPack = detail::kPackBytes / static_cast<int>(sizeof(T)), kPacks = 4;
  using Values = Pack<T, kPack>;
  static bool takes(std::int64_t n) { return n % kPack == 0 && n <= std::int64_t{kThreads} * kPack * kPacks; }

  DEVICE_ONLY RegisterRow(const Block& block, const T* x, std::int64_t n) : block_(block), packs_(n / kPack) {
    const bool aligned = is_aligned(x);
    block_.each([&](int thread) {
      each_pack(thread, [&](Values& values, std::int64_t at, int) { values = load(x, aligned, at); });
    });
  }
  // Joins term(value) of all values.
  template <class Join, class Term>
  DEVICE_ONLY T reduce(T start, Join join, Term term) {
    PerThread<T> sums;
    block_.each([&](int thread) {
      T sum = start;
      each_pack(thread, [&](Values& values, std::int64_t, int) {
        for (int j = 0; j < kPack; ++j) sum = join(sum, term(values.values[j]));
      });
      sums[thread] = sum;
    });
    return block_.reduce(sums, join);
  }
  // Replaces every value by f(value).
  template <class F>
  DEVICE_ONLY void update(F f) {
    block_.each([&](int thread) {
      each_pack(thread, [&](Values& values, std::int64_t, int) {
        for (int j = 0; j < kPack; ++j) values.values[j] = f(values.values[j]);
      });
    });
  }
  // Replaces every value by f(value, data[i]).
  template <class F>
  DEVICE_ONLY void update(const T* data, F f) {
    const bool aligned = is_aligned(data);
    block_.each([&](int thread) {
      Share others;  // all loads before the first use
      each_pack(thread, [&](Values&, std::int64_t at, int j) { others.packs[j] = load(data, aligned, at); });
      each_pack(thread, [&](Values& values, std::int64_t, int j) {
        for (int k = 0; k < kPack; ++k) values.values[k] = f(values.values[k], others.packs[j].values[k]);
      });
    });
  }
  // y[i] = f(value)
  template <class F>
  DEVICE_ONLY void store(T* y, F f) {
    const bool aligned = is_aligned(y);
    block_.each([&](int thread) {
      each_pack(thread, [&](Values& values, std::int64_t at, int) {
        Values out;
        for (int k = 0; k < kPack; ++k) out.values[k] = f(values.values[k]);
        if (aligned)
          reinterpret_cast<Values*>(y)[at] = out;
        else
          for (int k = 0; k < kPack; ++k) y[at * kPack + k] = out.values[k];
      });
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
    Share& own = share_[thread];
    UNROLL
    for (int j = 0; j < kPacks; ++j) {
      const std::int64_t at = std::int64_t{j} * kThreads + thread;
      if (at < packs_) f(own.packs[j], at, j);
    }
  }

  const Block& block_;
  std::int64_t packs_;
  PerThread<Share> share_;
};

}  // namespace lockstep::LOCKSTEP_KERNELS
