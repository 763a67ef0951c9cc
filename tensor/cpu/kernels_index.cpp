// Indexing kernels. index_range has checked the indices; additions run in order of the index position.
#include "lockstep/tensor/kernels/level_internal.h"

#include "lockstep/tensor/cpu/copies_internal.h"
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

namespace {

// Calls body(o, begin, end) for parts of the n units of each of `outer` rows; a unit has `work` elements.
template <class F>
void for_row_parts(std::int64_t outer, std::int64_t n, std::int64_t work, F body) {
  for_parts(outer * n, work, [=](std::int64_t first, std::int64_t last) {
    std::int64_t o = first / n;
    for (std::int64_t begin = first - o * n; o * n < last; begin = 0, ++o) body(o, begin, std::min(n, last - o * n));
  });
}

// Calls f(inner), with a constant if it is 1.
template <class F>
void with_inner(std::int64_t inner, F f) {
  if (inner == 1)
    f(std::integral_constant<std::int64_t, 1>());
  else
    f(inner);
}

// Calls with_element(T{}) if `size` is that of an element, otherwise other().
template <class F, class G>
void for_element_of(std::int64_t size, F with_element, G other) {
  switch (size) {
    case 1:
      return with_element(std::uint8_t{});
    case 2:
      return with_element(std::uint16_t{});
    case 4:
      return with_element(std::uint32_t{});
    case 8:
      return with_element(std::uint64_t{});
    default:
      return other();
  }
}

}  // namespace

// in (outer, n, inner), index (count) -> out (outer, count, inner)
void index_select(const void* in, const std::int64_t* index, void* out, const Rows& in_rows, std::int64_t count,
                  DType dtype) {
  const std::int64_t row_bytes = in_rows.inner * static_cast<std::int64_t>(item_size(dtype)), n = in_rows.n;
  const auto select = [=](auto copy) {
    for_row_parts(in_rows.outer, count, in_rows.inner, [=](std::int64_t o, std::int64_t begin, std::int64_t end) {
      copy(static_cast<const char*>(in) + o * n * row_bytes, static_cast<char*>(out) + o * count * row_bytes, begin,
           end);
    });
  };
  for_element_of(
      row_bytes,
      [&]<class T>(T) {
        select([=](const void* from, void* to, std::int64_t begin, std::int64_t end) {
          for (std::int64_t i = begin; i < end; ++i) as<T>(to)[i] = as<T>(from)[index[i]];
        });
      },
      [&] {
        select([=](const char* from, char* to, std::int64_t begin, std::int64_t end) {
          for (std::int64_t i = begin; i < end; ++i)
            copy_bytes(to + i * row_bytes, from + index[i] * row_bytes, static_cast<std::size_t>(row_bytes));
        });
      });
}

// out (outer, n, inner) += source (outer, count, inner) at the rows index (count)
void index_add(void* out, const std::int64_t* index, const void* source, const Rows& out_rows, std::int64_t count,
               DType dtype) {
  const std::int64_t plane = out_rows.n * out_rows.inner;
  for_number(dtype, [&]<class T>(T) {
    with_inner(out_rows.inner, [=, outer = out_rows.outer](auto inner) {
      for_units(outer, count * inner, [=](std::int64_t o) {
        const T* from = as<T>(source) + o * count * inner;
        for (std::int64_t i = 0; i < count; ++i, from += inner) {
          T* to = as<T>(out) + o * plane + index[i] * inner;
          for (std::int64_t c = 0; c < inner; ++c) to[c] = static_cast<T>(to[c] + from[c]);
        }
      });
    });
  });
}

// out (outer, n, inner) = in (outer, index value, inner)
void gather(const void* in, const std::int64_t* index, void* out, const Rows& index_rows, std::int64_t in_n,
            DType dtype) {
  const std::int64_t n = index_rows.n;
  for_size(dtype, [&]<class T>(T) {
    with_inner(index_rows.inner, [=, outer = index_rows.outer](auto inner) {
      for_row_parts(outer, n, inner, [=](std::int64_t o, std::int64_t begin, std::int64_t end) {
        const T* from = as<T>(in) + o * in_n * inner;
        T* to = as<T>(out) + (o * n + begin) * inner;
        const std::int64_t* places = index + (o * n + begin) * inner;
        for (std::int64_t r = begin; r < end; ++r, to += inner, places += inner) {
          for (std::int64_t c = 0; c < inner; ++c) to[c] = from[places[c] * inner + c];
        }
      });
    });
  });
}

namespace {

template <class T, class F>
void scatter_by(void* out, const std::int64_t* index, const void* source, const Rows& index_rows, std::int64_t out_n,
                F f) {
  const std::int64_t n = index_rows.n;
  with_inner(index_rows.inner, [=, outer = index_rows.outer](auto inner) {
    for_units(outer, n * inner, [=](std::int64_t o) {
      T* to = as<T>(out) + o * out_n * inner;
      const T* from = as<T>(source) + o * n * inner;
      const std::int64_t* places = index + o * n * inner;
      for (std::int64_t r = 0; r < n; ++r, from += inner, places += inner) {
        for (std::int64_t c = 0; c < inner; ++c) {
          T& place = to[places[c] * inner + c];
          place = f(place, from[c]);
        }
      }
    });
  });
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
