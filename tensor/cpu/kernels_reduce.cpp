// Reductions over the middle of (outer, n, inner). The order of additions depends on n (and on whether inner is 1)
// alone: neither on the number of threads nor on addresses.
#include "lockstep/tensor/kernels/level_internal.h"

#include <memory>

#include "lockstep/tensor/cpu/loops_internal.h"
#include "lockstep/tensor/cpu/packets_internal.h"

namespace lockstep::LOCKSTEP_KERNELS {

namespace {

constexpr std::int64_t kColumns = 256;  // columns of one share of a column reduction

// The sum of f over one row.
template <class T, class F>
double sum_row(const T* x, std::int64_t n, F f) {
  return sum_of_shares(n, [=](std::int64_t begin, std::int64_t count) { return sum_packets(x + begin, count, f); });
}

constexpr std::int64_t kShortRow = 16;   // elements of a short row, at most
constexpr std::int64_t kShortRows = 64;  // short rows that are reduced together

// Calls body(first, count, columns) for groups of short rows: columns[i][r] is element i of row first + r.
template <class T, class F>
void for_short_rows(const T* in, const Rows& rows, F body) {
  for_units((rows.outer + kShortRows - 1) / kShortRows, kShortRows * rows.n, [=](std::int64_t group) {
    const std::int64_t first = group * kShortRows,
                       count = rows.outer - first < kShortRows ? rows.outer - first : kShortRows;
    const T* x = in + first * rows.n;
    T columns[kShortRow][kShortRows];
    for (std::int64_t r = 0; r < count; ++r) {
      for (std::int64_t i = 0; i < rows.n; ++i) columns[i][r] = x[r * rows.n + i];
    }
    body(first, count, columns);
  });
}

// The sums of short rows, in the order of sum_packets: lane by lane, then the lanes by halves.
template <class T, class F>
void sum_short_rows(const T* in, const T* center, T* out, const Rows& rows, double scale, F f) {
  for_short_rows(in, rows, [=](std::int64_t first, std::int64_t count, const T(&columns)[kShortRow][kShortRows]) {
    constexpr std::int64_t kSize = kPacketSize<T>;
    T lanes[kSize][kShortRows] = {};
    for (std::int64_t i = 0; i < rows.n; ++i) {
      for (std::int64_t r = 0; r < count; ++r)
        lanes[i % kSize][r] += f(columns[i][r], center ? center[first + r] : T(0));
    }
    for (std::int64_t half = kSize / 2; half > 0; half /= 2) {
      for (std::int64_t j = 0; j < half; ++j) {
        for (std::int64_t r = 0; r < kShortRows; ++r) lanes[j][r] += lanes[j + half][r];
      }
    }
    for (std::int64_t r = 0; r < count; ++r) out[first + r] = static_cast<T>(static_cast<double>(lanes[0][r]) * scale);
  });
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

// part[c] = sum over the rows of f(x[r][c], begin + c), one row after another.
template <class T, class F>
void add_rows(const T* x, T* part, std::int64_t rows, std::int64_t inner, std::int64_t begin, std::int64_t count, F f) {
  for (std::int64_t c = 0; c < count; ++c) part[c] = 0;
  std::int64_t r = 0;
  for (; r + 4 <= rows; r += 4) {
    const T *a = x + r * inner + begin, *b = a + inner, *c = b + inner, *d = c + inner;
    for (std::int64_t i = 0; i < count; ++i) {
      const std::int64_t column = begin + i;
      part[i] = part[i] + f(a[i], column) + f(b[i], column) + f(c[i], column) + f(d[i], column);
    }
  }
  for (; r < rows; ++r) {
    const T* row = x + r * inner + begin;
    for (std::int64_t i = 0; i < count; ++i) part[i] += f(row[i], begin + i);
  }
}

// One share of a column reduction: out[c] = sum over r of f(in[r][c], c).
template <class T, class F>
void sum_columns(const T* in, T* out, std::int64_t n, std::int64_t inner, std::int64_t begin, std::int64_t count,
                 double scale, F f) {
  double total[kColumns] = {};
  T part[kColumns];
  for (std::int64_t r = 0; r < n; r += kRowsBetween) {
    add_rows(in + r * inner, part, n - r < kRowsBetween ? n - r : kRowsBetween, inner, begin, count, f);
    for (std::int64_t c = 0; c < count; ++c) total[c] += part[c];
  }
  for (std::int64_t c = 0; c < count; ++c) out[begin + c] = static_cast<T>(total[c] * scale);
}

// The same sums for all columns of many rows: threads share the rows, as in the operation that wrote them.
template <class T, class F>
void sum_many_rows(const T* in, T* out, std::int64_t n, std::int64_t inner, double scale, F f) {
  constexpr std::int64_t kWidth = 2048;
  const std::int64_t blocks = (n + kRowsBetween - 1) / kRowsBetween;
  const auto parts = std::make_unique_for_overwrite<T[]>(static_cast<std::size_t>(blocks * inner));
  T* const first = parts.get();
  for_units(blocks, kRowsBetween * inner, [=](std::int64_t block) {
    const std::int64_t r = block * kRowsBetween, rows = n - r < kRowsBetween ? n - r : kRowsBetween;
    for (std::int64_t c = 0; c < inner; c += kWidth)
      add_rows(in + r * inner, first + block * inner + c, rows, inner, c, inner - c < kWidth ? inner - c : kWidth, f);
  });
  for_columns(Rows{1, blocks, inner}, [=](std::int64_t, std::int64_t begin, std::int64_t count) {
    double total[kColumns] = {};
    for (std::int64_t block = 0; block < blocks; ++block) {
      for (std::int64_t c = 0; c < count; ++c) total[c] += first[block * inner + begin + c];
    }
    for (std::int64_t c = 0; c < count; ++c) out[begin + c] = static_cast<T>(total[c] * scale);
  });
}

constexpr std::int64_t kFewColumns = 32;

// The same for all columns, if they are few. Their partial sums would wait for each other, so several are added at once.
template <class T, class F>
void sum_few_columns(const T* in, T* out, std::int64_t n, std::int64_t inner, double scale, F f) {
  constexpr std::int64_t kBlocks = 4;
  double total[kFewColumns] = {};
  T parts[kBlocks * kFewColumns];
  const T* const end = parts + kBlocks * inner;
  for (std::int64_t first = 0; first < n; first += kBlocks * kRowsBetween) {
    for (T* part = parts; part < end; ++part) *part = 0;
    for (std::int64_t r = first; r < first + kRowsBetween && r < n; ++r) {
      T* part = parts;
      for (std::int64_t at = r; at < n && part < end; at += kRowsBetween, part += inner) {
        for (std::int64_t c = 0; c < inner; ++c) part[c] += f(in[at * inner + c], c);
      }
    }
    for (const T* part = parts; part < end; part += inner) {
      for (std::int64_t c = 0; c < inner; ++c) total[c] += part[c];
    }
  }
  for (std::int64_t c = 0; c < inner; ++c) out[c] = static_cast<T>(total[c] * scale);
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
  if (rows.inner == 1 && rows.n <= kShortRow && rows.n < 4 * kPacketSize<T>)
    return sum_short_rows(in, center, out, rows, scale, f);
  if (rows.inner == 1) {
    for_units(rows.outer, rows.n, [&](std::int64_t o) {
      const T c = center ? center[o] : T(0);
      const auto term = [c, f](const Packet<T>& x) { return Packet<T>(f(x, c)); };
      out[o] = static_cast<T>(sum_row(in + o * rows.n, rows.n, term) * scale);
    });
    return;
  }
  if (rows.outer == 1 && rows.n >= 2 * kRowsBetween && rows.inner > kFewColumns)
    return sum_many_rows(in, out, rows.n, rows.inner, scale,
                         [=](T x, std::int64_t column) { return f(x, center ? center[column] : T(0)); });
  for_columns(rows, [&](std::int64_t o, std::int64_t begin, std::int64_t count) {
    const T* c = center ? center + o * rows.inner : nullptr;
    const auto term = [c, f](T x, std::int64_t column) { return f(x, c ? c[column] : T(0)); };
    const T* x = in + o * rows.n * rows.inner;
    T* to = out + o * rows.inner;
    if (rows.inner <= kFewColumns) return sum_few_columns(x, to, rows.n, rows.inner, scale, term);
    sum_columns(x, to, rows.n, rows.inner, begin, count, scale, term);
  });
}

// The extreme of a share of a row, computed per lane first. NaN is more extreme than any number.
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
T extreme_of_share(const T* x, std::int64_t n, Better better) {
  constexpr int kSize = kPacketSize<T>;
  if (n >= 4 * kSize) return extreme_in_lanes<4 * kSize>(x, n, better);
  return n >= kSize ? extreme_in_lanes<kSize>(x, n, better) : extreme_in_lanes<1>(x, n, better);
}

template <class T, class Better>
T extreme_of_row(const T* x, std::int64_t n, Better better) {
  return reduce_shares(
      n, [=](std::int64_t begin, std::int64_t count) { return extreme_of_share(x + begin, count, better); },
      [=](T a, T b) { return (better(b, a) | (b != b)) ? b : a; });
}

// Its first index: the extreme of each block, then the first place of the extreme in its block.
template <class T, class Better>
std::int64_t position_in_share(const T* x, std::int64_t n, Better better) {
  T best = x[0];
  std::int64_t at = 0;
  for (std::int64_t block = 0; block < n && best == best; block += kSumBlock) {
    const T candidate = extreme_of_share(x + block, n - block < kSumBlock ? n - block : kSumBlock, better);
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

template <class T, class Better>
std::int64_t position_in_row(const T* x, std::int64_t n, Better better) {
  return reduce_shares(
      n, [=](std::int64_t begin, std::int64_t count) { return begin + position_in_share(x + begin, count, better); },
      [=](std::int64_t a, std::int64_t b) {
        const bool is_number = x[a] == x[a];  // the first NaN stays
        return is_number & (better(x[b], x[a]) | (x[b] != x[b])) ? b : a;
      });
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

// The extreme of each of `count` columns of n rows.
template <class T, class Better>
void extreme_of_columns(const T* x, T* out, std::int64_t n, std::int64_t inner, std::int64_t count, Better better) {
  T best[kColumns];
  for (std::int64_t c = 0; c < count; ++c) best[c] = x[c];
  for (std::int64_t r = 1; r < n; ++r) {
    const T* row = x + r * inner;
    for (std::int64_t c = 0; c < count; ++c)
      best[c] = (better(row[c], best[c]) | (row[c] != row[c])) ? row[c] : best[c];
  }
  for (std::int64_t c = 0; c < count; ++c) out[c] = best[c];
}

// Writes of_row(x, n) of each row, or calls of_columns(x, out, n, inner, count) for columns. Short rows become columns.
template <class T, class Out, class OfRow, class OfColumns>
void reduce(const T* in, Out* out, const Rows& rows, OfRow of_row, OfColumns of_columns) {
  if (rows.inner == 1 && rows.n <= kShortRow) {
    for_short_rows(in, rows, [=](std::int64_t first, std::int64_t count, const T(&columns)[kShortRow][kShortRows]) {
      of_columns(columns[0], out + first, rows.n, kShortRows, count);
    });
  } else if (rows.inner == 1) {
    for_units(rows.outer, rows.n, [=](std::int64_t o) { out[o] = of_row(in + o * rows.n, rows.n); });
  } else {
    for_columns(rows, [=](std::int64_t o, std::int64_t begin, std::int64_t count) {
      of_columns(in + o * rows.n * rows.inner + begin, out + o * rows.inner + begin, rows.n, rows.inner, count);
    });
  }
}

template <class T, class Better>
void position(const T* in, std::int64_t* out, const Rows& rows, Better better) {
  reduce(
      in, out, rows, [=](const T* x, std::int64_t n) { return position_in_row(x, n, better); },
      [=](const T* x, std::int64_t* to, std::int64_t n, std::int64_t inner, std::int64_t count) {
        position_in_columns(x, to, n, inner, count, better);
      });
}

template <class T, class Better>
void extreme(const T* in, T* out, const Rows& rows, Better better) {
  reduce(
      in, out, rows, [=](const T* x, std::int64_t n) { return extreme_of_row(x, n, better); },
      [=](const T* x, T* to, std::int64_t n, std::int64_t inner, std::int64_t count) {
        extreme_of_columns(x, to, n, inner, count, better);
      });
}

// The product of a share of a row, in the lanes of four packets.
template <class T>
T product_of_share(const T* x, std::int64_t n) {
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
T product_of_row(const T* x, std::int64_t n) {
  return reduce_shares(
      n, [x](std::int64_t begin, std::int64_t count) { return product_of_share(x + begin, count); },
      [](T a, T b) { return a * b; });
}

template <class T>
void product_of_columns(const T* x, T* out, std::int64_t n, std::int64_t inner, std::int64_t count) {
  T product[kColumns];
  for (std::int64_t c = 0; c < count; ++c) product[c] = 1;
  for (std::int64_t r = 0; r < n; ++r) {
    for (std::int64_t c = 0; c < count; ++c) product[c] *= x[r * inner + c];
  }
  for (std::int64_t c = 0; c < count; ++c) out[c] = product[c];
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
  const auto products = [&]<class T>(T) {
    reduce(as<T>(in), as<T>(out), rows, product_of_row<T>, product_of_columns<T>);
  };
  if (dtype == kInt64) return products(std::uint64_t{});  // unsigned: wraps around
  for_float(dtype, products);
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
