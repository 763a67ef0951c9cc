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

// Integers are added in 64 bits, which wrap around; bytes first in 32 bits, which hold the sum of a block.
template <class T>
void sum_integers(const T* in, std::int64_t* out, const Rows& rows) {
  using Part = std::conditional_t<sizeof(T) == 1, std::uint32_t, std::uint64_t>;
  if (rows.inner == 1) {
    return for_units(rows.outer, rows.n, [=](std::int64_t o) {
      std::uint64_t total = 0;
      for (std::int64_t begin = 0; begin < rows.n; begin += kSumBlock) {
        const T* x = in + o * rows.n + begin;
        const std::int64_t count = rows.n - begin < kSumBlock ? rows.n - begin : kSumBlock;
        Part part = 0;
        for (std::int64_t i = 0; i < count; ++i) part += static_cast<Part>(x[i]);
        total += part;
      }
      out[o] = static_cast<std::int64_t>(total);
    });
  }
  for_columns(rows, [&](std::int64_t o, std::int64_t begin, std::int64_t count) {
    std::uint64_t total[kColumns] = {};
    for (std::int64_t r = 0; r < rows.n; ++r) {
      const T* row = in + (o * rows.n + r) * rows.inner + begin;
      for (std::int64_t c = 0; c < count; ++c) total[c] += static_cast<std::uint64_t>(row[c]);
    }
    for (std::int64_t c = 0; c < count; ++c) out[o * rows.inner + begin + c] = static_cast<std::int64_t>(total[c]);
  });
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

// The extreme of a row, computed per lane first. NaN is more extreme than any number.
template <int kLanes, class T, class Better>
T extreme_in_lanes(const T* x, std::int64_t n, Better better) {
  const auto choose = [better](T a, T b) { return (better(a, b) | (a != a)) ? a : b; };
  T lanes[kLanes];
  for (int j = 0; j < kLanes; ++j) lanes[j] = x[j];
  for (std::int64_t i = kLanes; i + kLanes <= n; i += kLanes) {
    for (int j = 0; j < kLanes; ++j) lanes[j] = choose(x[i + j], lanes[j]);
  }
  x += n - kLanes;  // the last elements, some of them for the second time
  for (int j = 0; j < kLanes; ++j) lanes[j] = choose(x[j], lanes[j]);
  for (int half = kLanes / 2; half > 0; half /= 2) {
    for (int j = 0; j < half; ++j) lanes[j] = choose(lanes[j + half], lanes[j]);
  }
  return lanes[0];
}

template <class T, class Better>
T extreme_of_row(const T* x, std::int64_t n, Better better) {
  constexpr int kSize = kPacketSize<T>;
  if (n >= 4 * kSize) return extreme_in_lanes<4 * kSize>(x, n, better);
  return n >= kSize ? extreme_in_lanes<kSize>(x, n, better) : extreme_in_lanes<1>(x, n, better);
}

// Its first index: the extreme of each block, then the first place of the extreme in its block.
template <class T, class Better>
std::int64_t position_in_row(const T* x, std::int64_t n, Better better) {
  T best = x[0];
  std::int64_t at = 0;
  for (std::int64_t block = 0; block < n && best == best; block += kSumBlock) {
    const T candidate = extreme_of_row(x + block, n - block < kSumBlock ? n - block : kSumBlock, better);
    if (!better(candidate, best) && candidate == candidate) continue;
    best = candidate;
    at = block;
  }
  constexpr int kStep = 4 * kPacketSize<T>;
  const auto is_best = [best](T v) { return (v == best) | (v != v); };
  for (; at + kStep <= n; at += kStep) {
    int found = 0;
    for (int j = 0; j < kStep; ++j) found |= static_cast<int>(is_best(x[at + j]));
    if (found != 0) break;
  }
  while (!is_best(x[at])) ++at;
  return at;
}

// The first index of the extreme of each of `count` columns of n rows.
template <class T, class Better>
void position_in_columns(const T* x, std::int64_t* out, std::int64_t n, std::int64_t inner, std::int64_t count,
                         Better better) {
  T best[kColumns];
  std::int64_t at[kColumns] = {};
  for (std::int64_t c = 0; c < count; ++c) best[c] = x[c];
  for (std::int64_t r = 1; r < n; ++r) {
    const T* row = x + r * inner;
    for (std::int64_t c = 0; c < count; ++c) {
      const T v = row[c];
      const bool wins = (better(v, best[c]) | (v != v)) & (best[c] == best[c]);
      best[c] = wins ? v : best[c];
      at[c] = wins ? r : at[c];
    }
  }
  for (std::int64_t c = 0; c < count; ++c) out[c] = at[c];
}

template <class T, class Better>
void position(const T* in, std::int64_t* out, const Rows& rows, Better better) {
  if (rows.inner == 1) {
    return for_units(rows.outer, rows.n,
                     [=](std::int64_t o) { out[o] = position_in_row(in + o * rows.n, rows.n, better); });
  }
  for_columns(rows, [&](std::int64_t o, std::int64_t begin, std::int64_t count) {
    position_in_columns(in + o * rows.n * rows.inner + begin, out + o * rows.inner + begin, rows.n, rows.inner, count,
                        better);
  });
}

// The values of the extremes. Columns go row by row, so that the loop over columns is vectorised.
template <class T, class Better>
void extreme(const T* in, T* out, const Rows& rows, Better better) {
  if (rows.inner == 1) {
    return for_units(rows.outer, rows.n,
                     [=](std::int64_t o) { out[o] = extreme_of_row(in + o * rows.n, rows.n, better); });
  }
  for_columns(rows, [&](std::int64_t o, std::int64_t begin, std::int64_t count) {
    const T* x = in + o * rows.n * rows.inner + begin;
    T best[kColumns];
    for (std::int64_t c = 0; c < count; ++c) best[c] = x[c];
    for (std::int64_t r = 1; r < rows.n; ++r) {
      const T* row = x + r * rows.inner;
      for (std::int64_t c = 0; c < count; ++c)
        best[c] = (better(row[c], best[c]) | (row[c] != row[c])) ? row[c] : best[c];
    }
    for (std::int64_t c = 0; c < count; ++c) out[o * rows.inner + begin + c] = best[c];
  });
}

// The product of a row, in the lanes of four packets.
template <class T>
T product_of_row(const T* x, std::int64_t n) {
  constexpr int kLanes = 4 * kPacketSize<T>;
  T lanes[kLanes];
  for (int j = 0; j < kLanes; ++j) lanes[j] = 1;
  std::int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    for (int j = 0; j < kLanes; ++j) lanes[j] *= x[i + j];
  }
  for (int j = 0; i + j < n; ++j) lanes[j] *= x[i + j];
  for (int half = kLanes / 2; half > 0; half /= 2) {
    for (int j = 0; j < half; ++j) lanes[j] *= lanes[j + half];
  }
  return lanes[0];
}

template <class T>
void products(const T* in, T* out, const Rows& rows) {
  if (rows.inner == 1)
    return for_units(rows.outer, rows.n, [=](std::int64_t o) { out[o] = product_of_row(in + o * rows.n, rows.n); });
  for_columns(rows, [&](std::int64_t o, std::int64_t begin, std::int64_t count) {
    const T* x = in + o * rows.n * rows.inner + begin;
    T product[kColumns];
    for (std::int64_t c = 0; c < count; ++c) product[c] = 1;
    for (std::int64_t r = 0; r < rows.n; ++r) {
      for (std::int64_t c = 0; c < count; ++c) product[c] *= x[r * rows.inner + c];
    }
    for (std::int64_t c = 0; c < count; ++c) out[o * rows.inner + begin + c] = product[c];
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
      sum_integers(as<T>(in), as<std::int64_t>(out), rows);
  });
}

void sum_squares(const void* in, const void* center, void* out, const Rows& rows, DType dtype, double scale) {
  for_float(dtype, [&]<class T>(T) { sum_floats(as<T>(in), as<T>(center), as<T>(out), rows, scale, kSquare); });
}

void prod(const void* in, void* out, const Rows& rows, DType dtype) {
  if (dtype == kInt64) return products(as<std::uint64_t>(in), as<std::uint64_t>(out), rows);  // unsigned: wraps around
  for_float(dtype, [&]<class T>(T) { products(as<T>(in), as<T>(out), rows); });
}

void max(const void* in, void* out, const Rows& rows, DType dtype) {
  for_number(dtype, [&]<class T>(T) { extreme(as<T>(in), as<T>(out), rows, kGreater); });
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
