// Products of bf16 matrices by AVX512_BF16, whose instructions add two products to a sum in f32. Sums are rounded once.
// Without these instructions the wrapper multiplies f32.
//
// A unit of the work is a block of rows and columns of the result. For a chunk of terms, its part of a is packed unless
// its rows are runs of pairs of terms, and a panel of columns of b at a time, as pairs of terms in the lanes of registers.
// Every element of the result has the same sums wherever the blocks are cut, so its bits do not depend on threads.
#include "lockstep/tensor/cpu/bf16_product_internal.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <utility>

#include "lockstep/tensor/cpu/loops_internal.h"
#include "lockstep/tensor/cpu/tile_product_internal.h"
#include "lockstep/tensor/kernels/wide_internal.h"

#ifdef __AVX512F__
#include <immintrin.h>
#ifndef __clang__  // GCC 12 warns of registers as arguments of templates, and of its own intrinsics (bug 105593)
#pragma GCC diagnostic ignored "-Wignored-attributes"
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#endif
#endif

namespace lockstep::LOCKSTEP_KERNELS {

#ifdef __AVX512F__

namespace {

using Pair = std::uint32_t;  // two terms of a row or column, the first in the lower half

constexpr std::int64_t kRows = 128, kColumns = 512;  // of a unit
constexpr std::int64_t kTerms = 512;                 // of a chunk, which are added in sequence
constexpr std::int64_t kPanelColumns = 32;           // two registers of sums
constexpr std::int64_t kLeftRows = 12;               // whose sums, with those of a panel, fit the registers
constexpr std::int64_t kFewRows = 16;                // for which dot products may cost less than packing b
constexpr std::int64_t kDotTermsOfRow = 64;          // from which a further row of dot products does
constexpr std::int64_t kDotRows = 4;                 // of a block of dot products
constexpr int kDotColumns = 4;                       // of a block of dot products
constexpr std::int64_t kDotTerms = 16 * kTerms;      // of a chunk of dot products, in 16 sums
constexpr std::int64_t kMostShares = 32;             // of the work; each has its own workspace
constexpr std::int64_t kShareFrom = 1 << 22;         // minimum multiplications for several threads

constexpr std::int64_t up(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }

Pair pair_of(BFloat16 first, BFloat16 second) { return first.bits | static_cast<Pair>(second.bits) << 16; }

// Pair p of row i of the left operand begins at data[i row + p pair].
struct Pairs {
  const BFloat16* data;
  std::int64_t row, pair;
};

// out[i][j] = the sum over the pairs of row i and column j, added to out[i][j] if `add`, for kCount rows and a panel.
template <int kCount>
[[gnu::target("avx512bf16")]] void multiply(const Pairs& a, const Pair* panel, std::int64_t pairs, bool add, float* out,
                                            std::int64_t out_row) {
  __m512 low[kCount], high[kCount];
#pragma GCC unroll 12
  for (int i = 0; i < kCount; ++i) low[i] = high[i] = _mm512_setzero_ps();
  for (std::int64_t p = 0; p < pairs; ++p) {
    const __m512i first = _mm512_loadu_si512(panel + p * kPanelColumns);
    const __m512i second = _mm512_loadu_si512(panel + p * kPanelColumns + kPanelColumns / 2);
#pragma GCC unroll 12
    for (int i = 0; i < kCount; ++i) {
      int factors;
      std::memcpy(&factors, a.data + i * a.row + p * a.pair, sizeof(factors));
      const __m512i factor = _mm512_set1_epi32(factors);
      low[i] = _mm512_dpbf16_ps(low[i], (__m512bh)factor, (__m512bh)first);
      high[i] = _mm512_dpbf16_ps(high[i], (__m512bh)factor, (__m512bh)second);
    }
  }
#pragma GCC unroll 12
  for (int i = 0; i < kCount; ++i) {
    float* const to = out + i * out_row;
    _mm512_storeu_ps(to, add ? _mm512_add_ps(_mm512_loadu_ps(to), low[i]) : low[i]);
    _mm512_storeu_ps(to + 16, add ? _mm512_add_ps(_mm512_loadu_ps(to + 16), high[i]) : high[i]);
  }
}

using Multiply = void (*)(const Pairs& a, const Pair* panel, std::int64_t pairs, bool add, float* out,
                          std::int64_t out_row);
// multiply of 1 to kLeftRows rows.
Multiply multiply_of(std::int64_t rows) {
  static constexpr auto kFunctions = []<int... kLess>(std::integer_sequence<int, kLess...>) {
    return std::array<Multiply, sizeof...(kLess)>{multiply<kLess + 1>...};
  }
  (std::make_integer_sequence<int, kLeftRows>());
  return kFunctions[static_cast<std::size_t>(rows - 1)];
}

// The dot products of kCount rows with kDotColumns columns, all of which are runs of at most kDotTerms terms. The columns
// `ahead` elements after these are fetched into the cache, if there are any; a prefetch beyond b does nothing.
template <int kCount>
[[gnu::target("avx512bf16")]] void multiply_runs(const BFloat16* a, std::int64_t a_row, const BFloat16* const* columns,
                                                 std::int64_t ahead, std::int64_t terms, float* out) {
  __m512 sums[kCount * kDotColumns];
#pragma GCC unroll 16
  for (int i = 0; i < kCount * kDotColumns; ++i) sums[i] = _mm512_setzero_ps();
  for (std::int64_t p = 0; p < terms; p += 32) {
    const std::int64_t count = std::min<std::int64_t>(terms - p, 32);
    const auto mask = static_cast<__mmask32>((std::uint64_t{1} << count) - 1);
    __m512i left[kCount];
#pragma GCC unroll 4
    for (int i = 0; i < kCount; ++i) left[i] = _mm512_maskz_loadu_epi16(mask, a + i * a_row + p);
#pragma GCC unroll 4
    for (int j = 0; j < kDotColumns; ++j) {
      _mm_prefetch(reinterpret_cast<const char*>(columns[j] + ahead + p), _MM_HINT_T0);
      const __m512i right = _mm512_maskz_loadu_epi16(mask, columns[j] + p);
#pragma GCC unroll 4
      for (int i = 0; i < kCount; ++i)
        sums[i * kDotColumns + j] = _mm512_dpbf16_ps(sums[i * kDotColumns + j], (__m512bh)left[i], (__m512bh)right);
    }
  }
#pragma GCC unroll 16
  for (int i = 0; i < kCount * kDotColumns; ++i) out[i] = _mm512_reduce_add_ps(sums[i]);
}

// to[p][i] = pair p of row i, for `rows` rows; a missing last term is 0.
void pack_rows(const BFloat16* a, const Matrix& of, std::int64_t rows, std::int64_t terms, Pair* to) {
  for (std::int64_t p = 0; p < terms; p += 2) {
    const BFloat16 *const first = a + p * of.column, *const second = first + of.column;
    const bool is_pair = p + 1 < terms;
    for (std::int64_t i = 0; i < rows; ++i)
      *to++ = pair_of(first[i * of.row], is_pair ? second[i * of.row] : BFloat16{});
  }
}

// to[p][j] = pair p of column j of a panel, of which `columns` exist, where columns are runs: 16 x 16 pairs at a time.
void pack_runs(const BFloat16* b, std::int64_t column, std::int64_t columns, std::int64_t terms, Pair* to) {
  for (std::int64_t p = 0; p < terms / 2; p += 16) {
    const std::int64_t count = std::min<std::int64_t>(terms / 2 - p, 16);
    const auto mask = static_cast<__mmask16>((1U << count) - 1);
    for (std::int64_t half = 0; half < kPanelColumns; half += 16) {
      simd::PacketBlock<simd::Packet16f, 16> block;
      for (std::int64_t j = 0; j < 16; ++j)
        _mm_prefetch(reinterpret_cast<const char*>(b + (kPanelColumns + half + j) * column + 2 * p), _MM_HINT_T0);
      for (std::int64_t j = 0; j < 16; ++j)
        block.packet[j] =
            _mm512_castsi512_ps(half + j < columns ? _mm512_maskz_loadu_epi32(mask, b + (half + j) * column + 2 * p)
                                                   : _mm512_setzero_si512());
      simd::ptranspose(block);
      for (std::int64_t q = 0; q < count; ++q)
        _mm512_storeu_ps(reinterpret_cast<float*>(to + (p + q) * kPanelColumns + half), block.packet[q]);
    }
  }
  if (terms % 2 == 0) return;
  Pair* const last = to + terms / 2 * kPanelColumns;
  for (std::int64_t j = 0; j < kPanelColumns; ++j)
    last[j] = j < columns ? pair_of(b[j * column + terms - 1], BFloat16{}) : 0;
}

// The same where rows are runs.
void pack_columns(const BFloat16* b, std::int64_t row, std::int64_t columns, std::int64_t terms, Pair* to) {
  for (std::int64_t p = 0; p < terms; p += 2, to += kPanelColumns) {
    const BFloat16 *const first = b + p * row, *const second = first + row;
    if (p + 1 == terms) {
      for (std::int64_t j = 0; j < columns; ++j) to[j] = pair_of(first[j], BFloat16{});
    } else {
      for (std::int64_t j = 0; j < columns; ++j) to[j] = pair_of(first[j], second[j]);
    }
    std::fill(to + columns, to + kPanelColumns, Pair(0));
  }
}

class Bf16Product {
 public:
  explicit Bf16Product(const Gemm& gemm) : g(gemm) {
    const std::int64_t problems = (g.outer ? g.outer->numel : 1) * g.batch;
    units = problems * row_blocks * column_blocks;
    shares = units > 1 && problems * g.m * g.n * g.k >= kShareFrom ? std::min(units, kMostShares) : 1;
  }
  std::int64_t workspace() const { return has_runs ? 0 : shares * room; }
  void run() const {
    const auto share = [this](std::int64_t s) {
      for (std::int64_t unit = s * units / shares; unit < (s + 1) * units / shares; ++unit)
        run_unit(unit, as<float>(g.workspace) + s * room);
    };
    if (shares > 1)
      for_chunks(shares, share);
    else
      share(0);
  }

 private:
  void run_unit(std::int64_t unit, float* work) const {
    const std::int64_t problem = unit / column_blocks / row_blocks;
    const std::int64_t top = unit / column_blocks % row_blocks * kRows, left = unit % column_blocks * kColumns;
    const std::int64_t height = std::min(kRows, g.m - top), width = std::min(kColumns, g.n - left);
    std::int64_t offsets[] = {problem % g.batch * g.out_step, problem % g.batch * g.a_step,
                              problem % g.batch * g.b_step};
    if (g.outer) add_offsets(*g.outer, problem / g.batch, offsets);
    const BFloat16* const a = as<BFloat16>(g.a.data) + offsets[1] + top * g.a.row;
    const BFloat16* const b = as<BFloat16>(g.b.data) + offsets[2] + left * g.b.column;
    BFloat16* const out = as<BFloat16>(g.out.data) + offsets[0] + top * g.out.row + left;
    if (has_runs) return multiply_few(a, b, height, width, left, out);
    Pair *const packed = reinterpret_cast<Pair*>(work), *const panel = packed + packed_pairs;
    float* const sums = work + packed_pairs + kPanelColumns * kTerms / 2;
    for (std::int64_t p = 0; p < g.k; p += kTerms) {
      const std::int64_t terms = std::min(kTerms, g.k - p), pairs = up(terms, 2);
      const bool is_packed = needs_packing(terms);
      if (is_packed) pack_left(a + p * g.a.column, height, terms, packed);
      for (std::int64_t j = 0; j < width; j += kPanelColumns) {
        const std::int64_t columns = std::min(kPanelColumns, width - j);
        const BFloat16* const from = b + p * g.b.row + j * g.b.column;
        if (g.b.row == 1 && g.b.column != 1)
          pack_runs(from, g.b.column, columns, terms, panel);
        else
          pack_columns(from, g.b.row, columns, terms, panel);
        float* const to = sums + (chunks > 1 ? j : 0);
        for_blocks(height, [&](std::int64_t first, std::int64_t rows) {
          const BFloat16* const left_rows =
              is_packed ? reinterpret_cast<const BFloat16*>(packed + first * pairs) : a + first * g.a.row + p;
          const Pairs of_rows = is_packed ? Pairs{left_rows, 2, 2 * rows} : Pairs{left_rows, g.a.row, 2};
          multiply_of(rows)(of_rows, panel, pairs, p > 0, to + first * sums_row, sums_row);
        });
        if (p + terms == g.k) store(to, sums_row, height, columns, left + j, out + j);
      }
    }
  }
  // Few rows, and columns that are runs: dot products.
  void multiply_few(const BFloat16* a, const BFloat16* b, std::int64_t height, std::int64_t width, std::int64_t left,
                    BFloat16* out) const {
    static constexpr decltype(&multiply_runs<1>) kFunctions[] = {multiply_runs<1>, multiply_runs<2>, multiply_runs<3>,
                                                                 multiply_runs<4>};
    static_assert(std::size(kFunctions) == kDotRows);
    for (std::int64_t j = 0; j < width; j += kDotColumns) {
      for (std::int64_t i = 0; i < height; i += kDotRows) {
        const std::int64_t rows = std::min(kDotRows, height - i);
        float sums[kDotRows * kDotColumns] = {}, parts[kDotRows * kDotColumns];
        for (std::int64_t p = 0; p < g.k; p += kDotTerms) {
          const BFloat16* columns[kDotColumns];
          for (int column = 0; column < kDotColumns; ++column)
            columns[column] = b + std::min(j + column, width - 1) * g.b.column + p;
          kFunctions[rows - 1](a + i * g.a.row + p, g.a.row, columns, i == 0 ? kDotColumns * g.b.column : 0,
                               std::min(kDotTerms, g.k - p), parts);
          for (std::int64_t each = 0; each < rows * kDotColumns; ++each) sums[each] += parts[each];
        }
        store(sums, kDotColumns, rows, std::min<std::int64_t>(kDotColumns, width - j), left + j,
              out + i * g.out.row + j);
      }
    }
  }
  // Calls body(first row, rows) for blocks of rows of about equal size.
  template <class F>
  static void for_blocks(std::int64_t rows, F body) {
    const std::int64_t blocks = up(rows, kLeftRows);
    for (std::int64_t block = 0; block < blocks; ++block)
      body(block * rows / blocks, (block + 1) * rows / blocks - block * rows / blocks);
  }
  bool needs_packing(std::int64_t terms) const { return g.a.column != 1 || terms % 2 == 1; }
  void pack_left(const BFloat16* a, std::int64_t height, std::int64_t terms, Pair* to) const {
    for_blocks(height, [&](std::int64_t first, std::int64_t rows) {
      pack_rows(a + first * g.a.row, g.a, rows, terms, to + first * up(terms, 2));
    });
  }
  void store(const float* from, std::int64_t from_row, std::int64_t height, std::int64_t columns, std::int64_t column,
             BFloat16* to) const {
    const BFloat16* const bias = g.bias ? as<BFloat16>(g.bias) + column : nullptr;
    for (std::int64_t i = 0; i < height; ++i, from += from_row, to += g.out.row) {
      for (std::int64_t j = 0; j < columns; ++j) to[j] = to_bfloat16(bias ? from[j] + to_float(bias[j]) : from[j]);
    }
  }

  const Gemm& g;
  const std::int64_t row_blocks = up(g.m, kRows), column_blocks = up(g.n, kColumns), chunks = up(g.k, kTerms);
  const bool has_runs = g.m <= kFewRows && (g.m == 1 || g.k >= kDotTermsOfRow * g.m) && g.a.column == 1 && g.b.row == 1;
  std::int64_t units = 0, shares = 0;
  // The workspace of a share: the pairs of a, those of a panel of b, and the sums of a panel or, with several chunks, of
  // the unit.
  const std::int64_t packed_pairs =
      g.a.column != 1 || g.k % 2 == 1 ? std::min(g.m, kRows) * up(std::min(g.k, kTerms), 2) : 0;
  const std::int64_t sums_row = chunks > 1 ? up(std::min(g.n, kColumns), kPanelColumns) * kPanelColumns : kPanelColumns;
  const std::int64_t room = up(packed_pairs + kPanelColumns * kTerms / 2 + std::min(g.m, kRows) * sums_row, 16) * 16;
};

}  // namespace

std::int64_t bf16_workspace(const Gemm& gemm) {
  return __builtin_cpu_supports("avx512bf16") ? Bf16Product(gemm).workspace() : -1;
}

void bf16_product(const Gemm& gemm) { Bf16Product(gemm).run(); }

#else

std::int64_t bf16_workspace(const Gemm&) { return -1; }
void bf16_product(const Gemm&) {}

#endif

}  // namespace lockstep::LOCKSTEP_KERNELS
