// Reductions over the middle of (outer, n, inner). The order of additions depends on n (and on whether inner is 1)
// alone: neither on the number of threads nor on addresses.
#include "lockstep/tensor/kernels/level_internal.h"

#include "lockstep/tensor/cpu/loops_internal.h"
#include "lockstep/tensor/cpu/packets_internal.h"

namespace lockstep::LOCKSTEP_KERNELS {

namespace {

constexpr std::int64_t kColumns = 256;  // columns of one share of a column reduction

// The sum of f over one row.
template <class T, class F>
double sum_row(const T* x, std::int64_t n, F f) {
  return sum_of_shares(n, [&](std::int64_t begin, std::int64_t count) { return sum_packets(x + begin, count, f); });
}

// One share of a column reduction: out[c] = sum over r of f(in[r][c], c).
template <class T, class F>
void sum_columns(const T* in, T* out, std::int64_t n, std::int64_t inner, std::int64_t begin, std::int64_t count,
                 double scale, F f) {
  double total[kColumns] = {};
  T part[kColumns];
  for (std::int64_t r = 0; r < n;) {
    const std::int64_t stop = r + kRowsBetween < n ? r + kRowsBetween : n;
    for (std::int64_t c = 0; c < count; ++c) part[c] = 0;
    for (; r < stop; ++r) {
      const T* row = in + r * inner + begin;
      for (std::int64_t c = 0; c < count; ++c) part[c] += f(row[c], begin + c);
    }
    for (std::int64_t c = 0; c < count; ++c) total[c] += part[c];
  }
  for (std::int64_t c = 0; c < count; ++c) out[begin + c] = static_cast<T>(total[c] * scale);
}

// Calls body(o, begin, count) for pieces of at most kColumns columns of each outer index.
template <class F>
void for_columns(const Rows& rows, F body) {
  const std::int64_t pieces = (rows.inner + kColumns - 1) / kColumns;
  const std::int64_t width = rows.inner < kColumns ? rows.inner : kColumns;
  for_units(rows.outer * pieces, rows.n * width, [&](std::int64_t unit) {
    const std::int64_t begin = unit % pieces * kColumns;
    body(unit / pieces, begin, rows.inner - begin < kColumns ? rows.inner - begin : kColumns);
  });
}

template <class T>
void sum_integers(const T* in, T* out, const Rows& rows) {
  for (std::int64_t o = 0; o < rows.outer; ++o) {
    T* total = out + o * rows.inner;
    for (std::int64_t c = 0; c < rows.inner; ++c) total[c] = 0;
    for (std::int64_t r = 0; r < rows.n; ++r) {
      const T* row = in + (o * rows.n + r) * rows.inner;
      for (std::int64_t c = 0; c < rows.inner; ++c) total[c] = static_cast<T>(total[c] + row[c]);
    }
  }
}

// The sums of f(x, center), of packets or elements; `center` (outer, inner) may be null for 0.
template <class T, class F>
void sum_floats(const T* in, const T* center, T* out, const Rows& rows, double scale, F f) {
  if (rows.inner == 1) {
    for_units(rows.outer, rows.n, [&](std::int64_t o) {
      const T c = center ? center[o] : T(0);
      const auto term = [c, f](const Packet<T>& x) { return Packet<T>(f(x, c)); };
      out[o] = static_cast<T>(sum_row(in + o * rows.n, rows.n, term) * scale);
    });
    return;
  }
  for_columns(rows, [&](std::int64_t o, std::int64_t begin, std::int64_t count) {
    const T* c = center ? center + o * rows.inner : nullptr;
    sum_columns(in + o * rows.n * rows.inner, out + o * rows.inner, rows.n, rows.inner, begin, count, scale,
                [c, f](T x, std::int64_t column) { return f(x, c ? c[column] : T(0)); });
  });
}

// The first index of each column's extreme. NaN is more extreme than any number.
template <class T, class Better>
void position(const T* in, std::int64_t* out, const Rows& rows, Better better) {
  for_units(rows.outer, rows.n * rows.inner, [&](std::int64_t o) {
    const T* first = in + o * rows.n * rows.inner;
    for (std::int64_t c = 0; c < rows.inner; ++c) {
      std::int64_t best = 0;
      for (std::int64_t r = 1; r < rows.n && first[best * rows.inner + c] == first[best * rows.inner + c]; ++r) {
        const T x = first[r * rows.inner + c];
        if (better(x, first[best * rows.inner + c]) || x != x) best = r;
      }
      out[o * rows.inner + c] = best;
    }
  });
}

// The values of the extremes: row by row, so that the loop over columns is vectorised.
template <class T, class Better>
void extreme(const T* in, T* out, const Rows& rows, Better better) {
  for_columns(rows, [&](std::int64_t o, std::int64_t begin, std::int64_t count) {
    const T* x = in + o * rows.n * rows.inner + begin;
    T* best = out + o * rows.inner + begin;
    for (std::int64_t c = 0; c < count; ++c) best[c] = x[c];
    for (std::int64_t r = 1; r < rows.n; ++r) {
      for (std::int64_t c = 0; c < count; ++c) {
        const T v = x[r * rows.inner + c];
        best[c] = (better(v, best[c]) | (v != v)) ? v : best[c];
      }
    }
  });
}

constexpr auto kGreater = [](auto a, auto b) { return a > b; };
constexpr auto kLess = [](auto a, auto b) { return a < b; };
constexpr auto kValue = [](const auto& x, auto) { return x; };
constexpr auto kSquare = [](const auto& x, auto center) { return (x - center) * (x - center); };

}  // namespace

void sum(const void* in, void* out, const Rows& rows, DType dtype, double scale) {
  for_number(dtype, [&]<class T>(T) {
    if constexpr (std::is_floating_point_v<T>)
      sum_floats<T>(as<T>(in), nullptr, as<T>(out), rows, scale, kValue);
    else
      sum_integers(as<T>(in), as<T>(out), rows);
  });
}

void sum_squares(const void* in, const void* center, void* out, const Rows& rows, DType dtype, double scale) {
  for_float(dtype, [&]<class T>(T) { sum_floats(as<T>(in), as<T>(center), as<T>(out), rows, scale, kSquare); });
}

void max(const void* in, void* out, const Rows& rows, DType dtype) {
  for_number(dtype, [&]<class T>(T) {
    const T* x = as<T>(in);
    T* y = as<T>(out);
    if (rows.inner > 1) return extreme(x, y, rows, kGreater);
    for_units(rows.outer, rows.n, [&](std::int64_t o) { y[o] = max_of(x + o * rows.n, rows.n); });
  });
}
void min(const void* in, void* out, const Rows& rows, DType dtype) {
  for_number(dtype, [&]<class T>(T) { extreme(as<T>(in), as<T>(out), rows, kLess); });
}
void argmax(const void* in, std::int64_t* out, const Rows& rows, DType dtype) {
  for_number(dtype, [&]<class T>(T) { position(as<T>(in), out, rows, kGreater); });
}
void argmin(const void* in, std::int64_t* out, const Rows& rows, DType dtype) {
  for_number(dtype, [&]<class T>(T) { position(as<T>(in), out, rows, kLess); });
}

}  // namespace lockstep::LOCKSTEP_KERNELS
