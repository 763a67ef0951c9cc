// Indexing kernels. index_range has checked the indices; additions run in order of the index position.
#include "lockstep/tensor/kernels/level_internal.h"

#include "lockstep/tensor/cpu/loops_internal.h"
#include "lockstep/tensor/kernels/elementwise_internal.h"

namespace lockstep::LOCKSTEP_KERNELS {

void index_range(const std::int64_t* index, std::int64_t count, std::int64_t* lowest, std::int64_t* highest) {
  std::int64_t low = index[0], high = index[0];
  for (std::int64_t i = 1; i < count; ++i) {
    low = index[i] < low ? index[i] : low;
    high = index[i] > high ? index[i] : high;
  }
  *lowest = low;
  *highest = high;
}

// in (outer, n, inner), index (count) -> out (outer, count, inner)
void index_select(const void* in, const std::int64_t* index, void* out, const Rows& in_rows, std::int64_t count,
                  DType dtype) {
  const std::int64_t row_bytes = in_rows.inner * static_cast<std::int64_t>(item_size(dtype));
  for_units(in_rows.outer * count, in_rows.inner, [&](std::int64_t unit) {
    const std::int64_t o = unit / count, i = unit % count;
    std::memcpy(static_cast<char*>(out) + unit * row_bytes,
                static_cast<const char*>(in) + (o * in_rows.n + index[i]) * row_bytes,
                static_cast<std::size_t>(row_bytes));
  });
}

// out (outer, n, inner) += source (outer, count, inner) at the rows index (count)
void index_add(void* out, const std::int64_t* index, const void* source, const Rows& out_rows, std::int64_t count,
               DType dtype) {
  for_number(dtype, [&]<class T>(T) {
    for (std::int64_t o = 0; o < out_rows.outer; ++o) {
      for (std::int64_t i = 0; i < count; ++i) {
        T* to = as<T>(out) + (o * out_rows.n + index[i]) * out_rows.inner;
        const T* from = as<T>(source) + (o * count + i) * out_rows.inner;
        for (std::int64_t c = 0; c < out_rows.inner; ++c) to[c] = static_cast<T>(to[c] + from[c]);
      }
    }
  });
}

// out (outer, n, inner) = in (outer, index value, inner)
void gather(const void* in, const std::int64_t* index, void* out, const Rows& index_rows, std::int64_t in_n,
            DType dtype) {
  for_size(dtype, [&]<class T>(T) {
    for (std::int64_t o = 0; o < index_rows.outer; ++o) {
      const T* from = as<T>(in) + o * in_n * index_rows.inner;
      for (std::int64_t r = 0; r < index_rows.n; ++r) {
        const std::int64_t row = (o * index_rows.n + r) * index_rows.inner;
        for (std::int64_t c = 0; c < index_rows.inner; ++c)
          as<T>(out)[row + c] = from[index[row + c] * index_rows.inner + c];
      }
    }
  });
}

namespace {

template <class T, class F>
void scatter_by(void* out, const std::int64_t* index, const void* source, const Rows& index_rows, std::int64_t out_n,
                F f) {
  for (std::int64_t o = 0; o < index_rows.outer; ++o) {
    T* to = as<T>(out) + o * out_n * index_rows.inner;
    for (std::int64_t r = 0; r < index_rows.n; ++r) {
      const std::int64_t row = (o * index_rows.n + r) * index_rows.inner;
      for (std::int64_t c = 0; c < index_rows.inner; ++c) {
        T& place = to[index[row + c] * index_rows.inner + c];
        place = f(place, as<T>(source)[row + c]);
      }
    }
  }
}

}  // namespace

// out (outer, index value, inner) = f(itself, source), in order of the index position
void scatter(void* out, const std::int64_t* index, const void* source, const Rows& index_rows, std::int64_t out_n,
             DType dtype, raw::Scatter mode) {
  if (mode == raw::Scatter::kAssign) {
    for_size(dtype, [&]<class T>(T) {
      scatter_by<T>(out, index, source, index_rows, out_n, [](T, T value) { return value; });
    });
    return;
  }
  for_number(dtype, [&]<class T>(T) {
    with_scatter(mode, [&](auto f) { scatter_by<T>(out, index, source, index_rows, out_n, f); });
  });
}

}  // namespace lockstep::LOCKSTEP_KERNELS
