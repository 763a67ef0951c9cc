// Indexing. Every index is checked when it is used; one outside its range is reported and replaced by 0, so that no
// other memory is read or written.
#include <bit>

#include "lockstep/tensor/cuda/reduce_internal.h"
#include "lockstep/tensor/kernels/elementwise_internal.h"
#include "lockstep/tensor/kernels/for_dtype_internal.h"

namespace lockstep::LOCKSTEP_KERNELS {

namespace {

struct CheckedIndex {
  const std::int64_t* index;
  std::int64_t limit;
  Fault* fault;
  DEVICE_ONLY std::int64_t operator[](std::int64_t place) const {
    const std::int64_t value = index[place];
    if (value >= 0 && value < limit) return value;
    report(fault, Fault::kIndex, place, value, limit);
    return 0;
  }
};

// *to += value, atomically.
template <class T>
DEVICE_ONLY void add_to(T* to, T value) {
#ifdef __CUDA_ARCH__
  if constexpr (sizeof(T) == 8 && std::is_integral_v<T>) {
    atomicAdd(reinterpret_cast<unsigned long long*>(to), static_cast<unsigned long long>(value));
  } else if constexpr (sizeof(T) >= 4) {
    atomicAdd(to, value);
  } else {  // a byte in its word
    const auto address = reinterpret_cast<std::uintptr_t>(to);
    auto* const word = reinterpret_cast<unsigned*>(address & ~std::uintptr_t{3});
    const unsigned shift = static_cast<unsigned>(address & 3) * 8;
    unsigned seen = *word, expected;
    do {
      expected = seen;
      const unsigned sum = ((expected >> shift) + value) & 0xffu;
      seen = atomicCAS(word, expected, (expected & ~(0xffu << shift)) | sum << shift);
    } while (seen != expected);
  }
#else
  *to = static_cast<T>(*to + value);
#endif
}

// *to = f(*to, value), atomically.
template <class T, class F>
DEVICE_ONLY void update(T* to, T value, const F& f) {
#ifdef __CUDA_ARCH__
  using Word = std::conditional_t<sizeof(T) == 8, unsigned long long, unsigned>;
  const auto address = reinterpret_cast<std::uintptr_t>(to);
  auto* const word = reinterpret_cast<Word*>(address & ~static_cast<std::uintptr_t>(sizeof(Word) - 1));
  const unsigned shift = static_cast<unsigned>(address % sizeof(Word)) * 8;  // of a byte in its word
  Word seen = *word, expected;
  do {
    expected = seen;
    Word replaced;
    if constexpr (sizeof(T) == sizeof(Word))
      replaced = std::bit_cast<Word>(f(std::bit_cast<T>(expected), value));
    else
      replaced = (expected & ~(Word{0xff} << shift)) | Word{f(static_cast<T>(expected >> shift), value)} << shift;
    seen = atomicCAS(word, expected, replaced);
  } while (seen != expected);
#else
  *to = f(*to, value);
#endif
}

template <class T>
struct SelectRows {  // in (outer, n, inner), index (count) -> out (outer, count, inner)
  const T* in;
  CheckedIndex index;
  T* out;
  std::int64_t n;
  Divisor inner, count;
  DEVICE_ONLY void operator()(std::int64_t i) const {
    const Quotient at = inner.divide(i), row = count.divide(at.whole);
    out[i] = in[(row.whole * n + index[row.rest]) * inner.size() + at.rest];
  }
};

template <class T>
struct AddRows {  // out (outer, n, inner) += source (outer, count, inner)
  T* out;
  CheckedIndex index;
  const T* source;
  std::int64_t n;
  Divisor inner, count;
  DEVICE_ONLY void operator()(std::int64_t i) const {
    const Quotient at = inner.divide(i), row = count.divide(at.whole);
    add_to(out + (row.whole * n + index[row.rest]) * inner.size() + at.rest, source[i]);
  }
};

template <class T>
struct Gather {  // out (outer, n, inner) = in (outer, index value, inner)
  const T* in;
  CheckedIndex index;
  T* out;
  Divisor n, inner;
  std::int64_t in_n;
  DEVICE_ONLY void operator()(std::int64_t i) const {
    const Quotient at = inner.divide(i);
    out[i] = in[(n.divide(at.whole).whole * in_n + index[i]) * inner.size() + at.rest];
  }
};

template <class T>
struct ScatterTo {  // out (outer, index value, inner) = f(itself, source)
  T* out;
  CheckedIndex index;
  const T* source;
  Divisor n, inner;
  std::int64_t out_n;
  raw::Scatter mode;
  DEVICE_ONLY void operator()(std::int64_t i) const {
    const Quotient at = inner.divide(i);
    T* const to = out + (n.divide(at.whole).whole * out_n + index[i]) * inner.size() + at.rest;
    if (mode == raw::Scatter::kAssign)
      *to = source[i];
    else if (mode == raw::Scatter::kAdd)
      add_to(to, source[i]);
    else
      with_scatter(mode, [&](auto f) { update(to, source[i], f); });
  }
};

struct RangeOf {
  struct Sum {
    std::int64_t low, high;
  };
  const std::int64_t* in;
  Sum* out;
  DEVICE_ONLY Sum start() const { return {INT64_MAX, INT64_MIN}; }
  DEVICE_ONLY void add(Sum& sum, std::int64_t at, std::int64_t, std::int64_t) const {
    sum = join(sum, {in[at], in[at]});
  }
  DEVICE_ONLY Sum join(const Sum& a, const Sum& b) const {
    return {a.low < b.low ? a.low : b.low, a.high > b.high ? a.high : b.high};
  }
  DEVICE_ONLY void finish(std::int64_t, const Sum& sum) const { *out = sum; }
};

}  // namespace

// Waits for the device. Raw ops do not use it on cuda devices.
void index_range(const std::int64_t* index, std::int64_t count, std::int64_t* lowest, std::int64_t* highest) {
  forbid_in_capture("index_range");
  const Scratch result(sizeof(RangeOf::Sum));
  launch_reduce("index_range", Rows{.n = count}, RangeOf{index, result.as<RangeOf::Sum>()});
  RangeOf::Sum range{};
  result.read(&range, sizeof(range));
  *lowest = range.low;
  *highest = range.high;
}

void index_select(const void* in, const std::int64_t* index, void* out, const Rows& in_rows, std::int64_t count,
                  DType dtype) {
  const CheckedIndex checked{index, in_rows.n, fault_record()};
  for_size(dtype, [&]<class T>(T) {
    launch_elements("index_select", in_rows.outer * count * in_rows.inner,
                    SelectRows<T>{static_cast<const T*>(in), checked, static_cast<T*>(out), in_rows.n,
                                  Divisor(in_rows.inner), Divisor(count)});
  });
}

void index_add(void* out, const std::int64_t* index, const void* source, const Rows& out_rows, std::int64_t count,
               DType dtype) {
  const CheckedIndex checked{index, out_rows.n, fault_record()};
  for_number(dtype, [&]<class T>(T) {
    launch_elements("index_add", out_rows.outer * count * out_rows.inner,
                    AddRows<T>{static_cast<T*>(out), checked, static_cast<const T*>(source), out_rows.n,
                               Divisor(out_rows.inner), Divisor(count)});
  });
}

void gather(const void* in, const std::int64_t* index, void* out, const Rows& index_rows, std::int64_t in_n,
            DType dtype) {
  const CheckedIndex checked{index, in_n, fault_record()};
  for_size(dtype, [&]<class T>(T) {
    launch_elements("gather", index_rows.outer * index_rows.n * index_rows.inner,
                    Gather<T>{static_cast<const T*>(in), checked, static_cast<T*>(out), Divisor(index_rows.n),
                              Divisor(index_rows.inner), in_n});
  });
}

void scatter(void* out, const std::int64_t* index, const void* source, const Rows& index_rows, std::int64_t out_n,
             DType dtype, raw::Scatter mode) {
  const CheckedIndex checked{index, out_n, fault_record()};
  const auto run = [&]<class T>(T) {
    launch_elements("scatter", index_rows.outer * index_rows.n * index_rows.inner,
                    ScatterTo<T>{static_cast<T*>(out), checked, static_cast<const T*>(source), Divisor(index_rows.n),
                                 Divisor(index_rows.inner), out_n, mode});
  };
  if (item_size(dtype) == 2)
    run(std::uint16_t{});
  else
    for_number(dtype, run);
}

}  // namespace lockstep::LOCKSTEP_KERNELS
