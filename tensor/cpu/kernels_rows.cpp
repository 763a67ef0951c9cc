// Operations along one dimension of (outer, n, inner): softmax, layer and RMS normalisation and their gradients,
// cumulative sums, sorting.
#include "lockstep/tensor/kernels/level_internal.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <functional>
#include <limits>
#include <type_traits>

#include "lockstep/tensor/cpu/loops_internal.h"
#include "lockstep/tensor/cpu/packets_internal.h"
#include "lockstep/tensor/cpu/softmax_internal.h"

namespace lockstep::LOCKSTEP_KERNELS {

namespace {

// The sum of e^(x[i] - shift) without storing the terms.
template <class T>
double sum_shifted_exp(const T* x, std::int64_t n, T shift) {
  T tile[kTile];
  double total = 0;
  for (std::int64_t i = 0; i < n; i += kTile) {
    const std::int64_t length = std::min(kTile, n - i);
    shifted_exp(x + i, tile, length, shift);
    total += sum_packets(tile, length, [](const Packet<T>& v) { return v; });
  }
  return total;
}

// The shift that prevents overflow of the exponentials; 0 for a row of -inf, where -inf - -inf would be NaN.
template <class T>
T shift_of(T highest) {
  return highest == -std::numeric_limits<T>::infinity() ? T(0) : highest;
}

// Contiguous rows: maximum, exponentials with their sum, then one scaling pass, all in the first-level cache.
template <class T>
void softmax_row(const T* x, T* y, std::int64_t n, bool log) {
  const T shift = shift_of(largest(x, n));
  if (log) {
    const T total = static_cast<T>(std::log(sum_shifted_exp(x, n, shift)));
    for (std::int64_t i = 0; i < n; ++i) y[i] = (x[i] - shift) - total;
    return;
  }
  shifted_exp(x, y, n, shift);
  const T factor = static_cast<T>(1 / sum_packets(y, n, [](const Packet<T>& v) { return v; }));
  for (std::int64_t i = 0; i < n; ++i) y[i] *= factor;
}

constexpr std::int64_t kColumns = 64;  // columns that one pass over the rows takes

// Calls body(offset, width) for blocks of `width` columns of each (n, inner), at `offset` elements.
template <class F>
void for_column_blocks(const Rows& rows, F body) {
  const std::int64_t blocks = (rows.inner + kColumns - 1) / kColumns;
  for_units(rows.outer * blocks, rows.n * std::min(kColumns, rows.inner), [=](std::int64_t unit) {
    const std::int64_t first = unit % blocks * kColumns;
    body(unit / blocks * rows.n * rows.inner + first, std::min(kColumns, rows.inner - first));
  });
}

// out = the sums of `width` columns over n rows: add_row(r, part) adds row r to partial sums of kRowsBetween rows.
template <class T, class F>
void sum_column_block(std::int64_t n, std::int64_t width, T* out, F add_row) {
  double totals[kColumns] = {};
  for (std::int64_t r = 0; r < n;) {
    T part[kColumns] = {};
    for (const std::int64_t stop = std::min(n, r + kRowsBetween); r < stop; ++r) add_row(r, part);
    for (std::int64_t c = 0; c < width; ++c) totals[c] += static_cast<double>(part[c]);
  }
  for (std::int64_t c = 0; c < width; ++c) out[c] = static_cast<T>(totals[c]);
}

// Rows with inner > 1: `width` columns, row by row.
template <class T>
void softmax_columns(const T* x, T* y, const Rows& rows, std::int64_t width, bool log) {
  T shift[kColumns], total[kColumns];
  std::copy(x, x + width, shift);
  for (std::int64_t r = 1; r < rows.n; ++r) {
    const T* const row = x + r * rows.inner;
    for (std::int64_t c = 0; c < width; ++c) shift[c] = row[c] > shift[c] || row[c] != row[c] ? row[c] : shift[c];
  }
  for (std::int64_t c = 0; c < width; ++c) shift[c] = shift_of(shift[c]);
  sum_column_block(rows.n, width, total, [=, &shift](std::int64_t r, T* part) {
    const T* const row = x + r * rows.inner;
    T* const out = y + r * rows.inner;
    for (std::int64_t c = 0; c < width; ++c) {
      out[c] = math::exp(row[c] - shift[c]);
      part[c] += out[c];
    }
  });
  for (std::int64_t c = 0; c < width && log; ++c) total[c] = std::log(total[c]);
  for (std::int64_t r = 0; r < rows.n; ++r) {
    const T* const row = x + r * rows.inner;
    T* const out = y + r * rows.inner;
    if (log) {
      for (std::int64_t c = 0; c < width; ++c) out[c] = (row[c] - shift[c]) - total[c];
    } else {
      for (std::int64_t c = 0; c < width; ++c) out[c] = out[c] / total[c];
    }
  }
}

// softmax: y (g - sum(g y)); log_softmax: g - e^y sum(g).
template <class T>
void softmax_backward_columns(const T* g, const T* y, T* out, const Rows& rows, std::int64_t width, bool log) {
  T total[kColumns];
  sum_column_block(rows.n, width, total, [=](std::int64_t r, T* part) {
    const std::int64_t at = r * rows.inner;
    if (log) {
      for (std::int64_t c = 0; c < width; ++c) part[c] += g[at + c];
    } else {
      for (std::int64_t c = 0; c < width; ++c) part[c] += g[at + c] * y[at + c];
    }
  });
  for (std::int64_t r = 0; r < rows.n; ++r) {
    const std::int64_t at = r * rows.inner;
    if (log) {
      for (std::int64_t c = 0; c < width; ++c) out[at + c] = g[at + c] - math::exp(y[at + c]) * total[c];
    } else {
      for (std::int64_t c = 0; c < width; ++c) out[at + c] = y[at + c] * (g[at + c] - total[c]);
    }
  }
}

template <class T>
void softmax_backward_row(const T* g, const T* y, T* out, std::int64_t n, bool log) {
  constexpr int kSize = kPacketSize<T>;
  double sum = 0;
  for (std::int64_t begin = 0; begin < n; begin += kShortBlock<T>) {
    const std::int64_t end = std::min(n, begin + kShortBlock<T>);
    Packet<T> sums = Packet<T>::Zero();
    for (std::int64_t i = begin; i < end; i += kSize) {
      const Packet<T> gs = load_part(g + i, end - i, T(0)), ys = load_part(y + i, end - i, T(0));
      sums += log ? gs : Packet<T>(gs * ys);
    }
    sum += static_cast<double>(add_lanes<T>(sums));
  }
  const T total = static_cast<T>(sum);
  for (std::int64_t i = 0; i < n; i += kSize) {
    const Packet<T> gs = load_part(g + i, n - i, T(0)), ys = load_part(y + i, n - i, T(0));
    const Packet<T> result = log ? Packet<T>(gs - exp_packet<Packet<T>>(ys) * total) : Packet<T>(ys * (gs - total));
    store_part<T>(out + i, result, n - i);
  }
}

}  // namespace

void softmax(const void* in, void* out, const Rows& rows, DType dtype, bool log) {
  for_float(dtype, [&]<class T>(T) {
    const T* x = as<T>(in);
    T* y = as<T>(out);
    if (rows.inner > 1) {
      return for_column_blocks(
          rows, [=](std::int64_t at, std::int64_t width) { softmax_columns(x + at, y + at, rows, width, log); });
    }
    for_units(rows.outer, rows.n, [=](std::int64_t o) { softmax_row(x + o * rows.n, y + o * rows.n, rows.n, log); });
  });
}

void softmax_backward(const void* grad, const void* y, void* out, const Rows& rows, DType dtype, bool log) {
  for_float(dtype, [&]<class T>(T) {
    const T *g = as<T>(grad), *values = as<T>(y);
    T* to = as<T>(out);
    if (rows.inner > 1) {
      return for_column_blocks(rows, [=](std::int64_t at, std::int64_t width) {
        softmax_backward_columns(g + at, values + at, to + at, rows, width, log);
      });
    }
    for_units(rows.outer, rows.n, [=](std::int64_t o) {
      softmax_backward_row(g + o * rows.n, values + o * rows.n, to + o * rows.n, rows.n, log);
    });
  });
}

namespace {

// out = (x - mean) factor weight + bias, where factor is 1 / sqrt(variance + eps). If not centered, the mean is 0.
template <class T>
void layer_norm_row(const T* x, const T* weight, const T* bias, T* out, T* mean, T* factor, std::int64_t n, double eps,
                    bool centered) {
  const auto count = static_cast<double>(n);
  const T m = centered ? static_cast<T>(sum_packets(x, n, [](const Packet<T>& v) { return v; }) / count) : T(0);
  const auto square = [m](const Packet<T>& v) { return Packet<T>((v - m) * (v - m)); };
  const T f = static_cast<T>(1 / std::sqrt(sum_packets(x, n, square) / count + eps));
  *mean = m;
  *factor = f;
  for (std::int64_t i = 0; i < n; ++i) out[i] = (x[i] - m) * f;
  if (weight) {
    for (std::int64_t i = 0; i < n; ++i) out[i] *= weight[i];
  }
  if (bias) {
    for (std::int64_t i = 0; i < n; ++i) out[i] += bias[i];
  }
}

// With z = (x - mean) factor and gw = g weight: (gw - mean(gw) - z mean(gw z)) factor, without mean(gw) if not centered.
template <class T>
void layer_norm_backward_row(const T* g, const T* x, const T* weight, T mean, T factor, T* out, std::int64_t n,
                             bool centered) {
  constexpr int kSize = kPacketSize<T>;
  double total = 0, total_z = 0;
  for (std::int64_t begin = 0; begin < n; begin += kSumBlock) {
    const std::int64_t end = std::min(n, begin + kSumBlock);
    Packet<T> sums = Packet<T>::Zero(), sums_z = sums;
    for (std::int64_t i = begin; i < end; i += kSize) {
      Packet<T> gw = load_part(g + i, end - i, T(0));  // the padding is 0 in both sums
      if (weight) gw *= load_part(weight + i, end - i, T(0));
      sums += gw;
      sums_z += gw * ((load_part(x + i, end - i, mean) - mean) * factor);
    }
    total += static_cast<double>(add_lanes<T>(sums));
    total_z += static_cast<double>(add_lanes<T>(sums_z));
  }
  const T shift = centered ? static_cast<T>(total / static_cast<double>(n)) : T(0),
          slope = static_cast<T>(total_z / static_cast<double>(n));
  const auto gradient = [=](T gw, T v) { return ((gw - shift) - (v - mean) * factor * slope) * factor; };
  if (weight) {
    for (std::int64_t i = 0; i < n; ++i) out[i] = gradient(g[i] * weight[i], x[i]);
  } else {
    for (std::int64_t i = 0; i < n; ++i) out[i] = gradient(g[i], x[i]);
  }
}

// Columns [begin, begin + count) of the sums over rows of g z and g.
template <class T>
void layer_norm_columns(const T* g, const T* x, const T* mean, const T* factor, T* grad_weight, T* grad_bias,
                        const Rows& rows, std::int64_t begin, std::int64_t count) {
  double total[kColumns] = {}, total_z[kColumns] = {};
  for (std::int64_t r = 0; r < rows.outer;) {
    T part[kColumns] = {}, part_z[kColumns] = {};
    for (const std::int64_t stop = std::min(rows.outer, r + kRowsBetween); r < stop; ++r) {
      const T *gs = g + r * rows.n + begin, *xs = x + r * rows.n + begin;
      const T m = mean[r], f = factor[r];
      for (std::int64_t c = 0; c < count; ++c) {
        part[c] += gs[c];
        part_z[c] += gs[c] * ((xs[c] - m) * f);
      }
    }
    for (std::int64_t c = 0; c < count; ++c) {
      total[c] += static_cast<double>(part[c]);
      total_z[c] += static_cast<double>(part_z[c]);
    }
  }
  for (std::int64_t c = 0; c < count; ++c) {
    if (grad_weight) grad_weight[begin + c] = static_cast<T>(total_z[c]);
    if (grad_bias) grad_bias[begin + c] = static_cast<T>(total[c]);
  }
}

}  // namespace

void layer_norm(const void* x, const void* weight, const void* bias, void* out, void* statistics, const Rows& rows,
                DType dtype, double eps, bool centered) {
  for_float(dtype, [&]<class T>(T) {
    T* mean = as<T>(statistics);
    for_units(rows.outer, rows.n, [&](std::int64_t o) {
      layer_norm_row(as<T>(x) + o * rows.n, as<T>(weight), as<T>(bias), as<T>(out) + o * rows.n, mean + o,
                     mean + rows.outer + o, rows.n, eps, centered);
    });
  });
}

void layer_norm_backward(const void* grad, const void* x, const void* weight, const void* statistics, void* out,
                         const Rows& rows, DType dtype, bool centered) {
  for_float(dtype, [&]<class T>(T) {
    const T* mean = as<T>(statistics);
    for_units(rows.outer, rows.n, [&](std::int64_t o) {
      layer_norm_backward_row(as<T>(grad) + o * rows.n, as<T>(x) + o * rows.n, as<T>(weight), mean[o],
                              mean[rows.outer + o], as<T>(out) + o * rows.n, rows.n, centered);
    });
  });
}

void layer_norm_backward_affine(const void* grad, const void* x, const void* statistics, void* grad_weight,
                                void* grad_bias, const Rows& rows, DType dtype) {
  for_float(dtype, [&]<class T>(T) {
    const T* mean = as<T>(statistics);
    for_units((rows.n + kColumns - 1) / kColumns, rows.outer * kColumns, [&](std::int64_t piece) {
      const std::int64_t begin = piece * kColumns;
      layer_norm_columns(as<T>(grad), as<T>(x), mean, mean + rows.outer, as<T>(grad_weight), as<T>(grad_bias), rows,
                         begin, std::min(kColumns, rows.n - begin));
    });
  });
}

namespace {

constexpr std::int64_t kRowsAtOnce =
    4;  // sums that do not wait for each other; with 8, rows of 4 KiB would evict each other

// Running sums of f32 are f64.
template <class T>
using RunningSum = std::conditional_t<std::is_same_v<T, float>, double, T>;

// Running sums along `count` contiguous rows.
template <class T>
void cumsum_rows(const T* x, T* y, std::int64_t count, std::int64_t n, bool reverse) {
  RunningSum<T> total[kRowsAtOnce] = {};
  for (std::int64_t r = 0; r < n; ++r) {
    const std::int64_t at = reverse ? n - 1 - r : r;
    for (std::int64_t k = 0; k < count; ++k) {
      total[k] = static_cast<RunningSum<T>>(total[k] + x[k * n + at]);
      y[k * n + at] = static_cast<T>(total[k]);
    }
  }
}

// Running sums along `width` columns, row by row.
template <class T>
void cumsum_columns(const T* x, T* y, const Rows& rows, std::int64_t width, bool reverse) {
  RunningSum<T> total[kColumns] = {};
  for (std::int64_t r = 0; r < rows.n; ++r) {
    const std::int64_t at = (reverse ? rows.n - 1 - r : r) * rows.inner;
    for (std::int64_t c = 0; c < width; ++c) {
      total[c] = static_cast<RunningSum<T>>(total[c] + x[at + c]);
      y[at + c] = static_cast<T>(total[c]);
    }
  }
}

}  // namespace

void cumsum(const void* in, void* out, const Rows& rows, DType dtype, bool reverse) {
  for_number(dtype, [&]<class T>(T) {
    const T* x = as<T>(in);
    T* y = as<T>(out);
    if (rows.inner > 1) {
      return for_column_blocks(
          rows, [=](std::int64_t at, std::int64_t width) { cumsum_columns(x + at, y + at, rows, width, reverse); });
    }
    for_units((rows.outer + kRowsAtOnce - 1) / kRowsAtOnce, rows.n * kRowsAtOnce, [=](std::int64_t unit) {
      const std::int64_t first = unit * kRowsAtOnce, at = first * rows.n;
      if (rows.outer - first >= kRowsAtOnce) return cumsum_rows(x + at, y + at, kRowsAtOnce, rows.n, reverse);
      cumsum_rows(x + at, y + at, rows.outer - first, rows.n, reverse);
    });
  });
}

namespace {

// 32 bits that order like the values of `dtype`: NaN is the largest value, and -0 equals 0.
inline std::uint32_t order_bits(float x) {
  const float value = x == 0 ? 0.0F : x;
  const auto bits = std::bit_cast<std::uint32_t>(value);
  if (value != value) return ~std::uint32_t{0};
  return bits >> 31 != 0 ? ~bits : bits | 0x80000000U;
}
inline std::uint32_t order_bits(std::int32_t x) { return static_cast<std::uint32_t>(x) ^ 0x80000000U; }
inline std::uint32_t order_bits(std::uint8_t x) { return x; }

// The first `keep` in order, by `before`.
template <class Key, class Before>
void sort_first(Key* row, std::int64_t n, std::int64_t keep, Before before) {
  if (keep < n)
    std::partial_sort(row, row + keep, row + n, before);
  else
    std::sort(row, row + n, before);
}

// The order of 32-bit values: their order bits and positions are sorted as one integer, in the memory of the result.
template <class T>
void sort_row(const T* x, std::int64_t* order, std::int64_t n, std::int64_t keep, bool descending) {
  auto* const keys = reinterpret_cast<std::uint64_t*>(order);
  const std::uint32_t flip = descending ? ~std::uint32_t{0} : 0;
  for (std::int64_t i = 0; i < n; ++i)
    keys[i] = static_cast<std::uint64_t>(order_bits(x[i]) ^ flip) << 32 | static_cast<std::uint64_t>(i);
  sort_first(keys, n, keep, std::less());
  for (std::int64_t i = 0; i < keep; ++i) order[i] = static_cast<std::int64_t>(keys[i] & ~std::uint32_t{0});
}

// The order of any values, which are compared through their positions.
template <class T>
void sort_positions(const T* x, std::int64_t* order, std::int64_t n, std::int64_t keep, bool descending) {
  for (std::int64_t i = 0; i < n; ++i) order[i] = i;
  // NaN counts as the largest value; equal values keep their order.
  const auto less = [](T a, T b) { return a < b || (b != b && a == a); };
  const auto before = [&](std::int64_t i, std::int64_t j) {
    const T a = descending ? x[j] : x[i], b = descending ? x[i] : x[j];
    if (less(a, b)) return true;
    return !less(b, a) && i < j;
  };
  sort_first(order, n, keep, before);
}

}  // namespace

void sort(const void* in, std::int64_t* order, std::int64_t outer, std::int64_t n, std::int64_t keep, DType dtype,
          bool descending) {
  for_number(dtype, [&]<class T>(T) {
    for_units(outer, n, [&](std::int64_t o) {
      const T* x = as<T>(in) + o * n;
      if constexpr (sizeof(T) <= 4) {
        if (n <= std::int64_t{1} << 32) return sort_row(x, order + o * n, n, keep, descending);
      }
      sort_positions(x, order + o * n, n, keep, descending);
    });
  });
}

}  // namespace lockstep::LOCKSTEP_KERNELS
