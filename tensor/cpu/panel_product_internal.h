// Products of convolutions in registers. Their right operand is not a matrix: row p begins at b[offsets[p]], which is how
// windows lie in a padded image (padded_planes_internal.h).
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <type_traits>
#include <utility>

#include "lockstep/tensor/cpu/tile_product_internal.h"
#include "lockstep/tensor/kernels/level_internal.h"

namespace lockstep::LOCKSTEP_KERNELS {

// Rows of a block of a panel product: their sums, two registers each, leave a few registers for the operands.
template <class T>
inline constexpr int kPanelRows = sizeof(Register<T>) == 64 ? 12 : 6;
// Rows of both operands in a block of dot products; every pair has a register.
template <class T>
inline constexpr int kDotLeft = sizeof(Register<T>) == 64 ? 4 : 3;
template <class T>
inline constexpr int kDotRight = sizeof(Register<T>) == 64 ? 6 : 4;

// For lambdas that index registers, in every build.
#define LOCKSTEP_INLINE __attribute__((always_inline))

// Calls body(0), ..., body(kCount - 1) with constants, so that arrays that it indexes lie in registers.
template <int kCount, class F>
[[gnu::always_inline]] inline void unrolled(const F& body) {
  [&]<int... kIndex>(std::integer_sequence<int, kIndex...>) LOCKSTEP_INLINE {
    (body(std::integral_constant<int, kIndex>()), ...);
  }
  (std::make_integer_sequence<int, kCount>());
}

// Where the operands of a block are.
enum class Operands : std::uint8_t {
  kRows,    // a has rows `a_row` elements apart; row p of b begins at b[offsets[p]]
  kPacked,  // a has kRows elements for each p; b likewise
  kLanes,   // the elements of a for p begin at a[offsets[p]]; b is packed, kWidth registers for each p
  kWindow,  // kLanes, where the elements for p are a window of three columns, whose rows are `a_row` apart
};

// out[i][j] = the sum over p, in order, of a[i][p] b[p][j], added to out[i][j] if `add`, for kRows rows and the columns of
// kWidth registers: a panel, or its first half.
template <int kRows, int kWidth, Operands kOperands, class T>
void panel_block(const T* a, std::int64_t a_row, const T* b, const std::int64_t* offsets, std::int64_t depth, bool add,
                 T* out, std::int64_t out_row) {
  using R = Register<T>;
  R sums[kRows * kWidth];
  unrolled<kRows * kWidth>([&](auto i) LOCKSTEP_INLINE { sums[i] = simd::pset1<R>(T(0)); });
  for (std::int64_t p = 0; p < depth; ++p) {
    constexpr bool kWindow = kOperands == Operands::kWindow, kInLanes = kWindow || kOperands == Operands::kLanes;
    constexpr bool kSpread = kOperands == Operands::kRows;
    const T* const row = kInLanes ? b + p * kWidth * kLanes<T> : b + offsets[p];
    R right[kWidth];
    unrolled<kWidth>([&](auto k) LOCKSTEP_INLINE { right[k] = simd::ploadu<R>(row + k * kLanes<T>); });
    const T* left = kInLanes ? a + offsets[p] : kSpread ? a + p : a + p * kRows;
    if constexpr (kSpread) asm("" : "+r"(left));  // or every row would have a pointer, more than there are registers
    unrolled<kRows>([&](auto i) LOCKSTEP_INLINE {
      const R factor = simd::pset1<R>(kSpread   ? (left + i / 3 * 3 * a_row)[i % 3 * a_row]
                                      : kWindow ? (left + i / 3 * a_row)[i % 3]
                                                : left[i]);
      unrolled<kWidth>([&](auto k) LOCKSTEP_INLINE {
        R& sum = sums[i * kWidth + k];
        sum = simd::pmadd(factor, right[k], sum);
      });
    });
  }
  unrolled<kRows * kWidth>([&](auto i) LOCKSTEP_INLINE {
    T* const to = out + i / kWidth * out_row + i % kWidth * kLanes<T>;
    simd::pstoreu(to, add ? simd::padd(simd::ploadu<R>(to), sums[i]) : sums[i]);
  });
}

// The most rows of a block. With kLanes, factors are read where they are used and need no registers.
template <Operands kOperands, class T>
inline constexpr int kBlockRows = kOperands == Operands::kWindow                               ? 9
                                  : kOperands == Operands::kLanes && sizeof(Register<T>) == 64 ? 14
                                                                                               : kPanelRows<T>;

template <class T>
using PanelBlock = void (*)(const T* a, std::int64_t a_row, const T* b, const std::int64_t* offsets, std::int64_t depth,
                            bool add, T* out, std::int64_t out_row);
// panel_block of 1 to kBlockRows rows, and the columns of a panel, or of half of one if there are no more.
template <Operands kOperands, class T>
PanelBlock<T> panel_block_of(std::int64_t rows, std::int64_t columns) {
  static constexpr auto kBlocks = []<int... kLess>(std::integer_sequence<int, kLess...>) {
    return std::array<std::array<PanelBlock<T>, 2>, sizeof...(kLess)>{
        {{panel_block<kLess + 1, 1, kOperands, T>, panel_block<kLess + 1, 2, kOperands, T>}...}};
  }
  (std::make_integer_sequence<int, kBlockRows<kOperands, T>>());
  return kBlocks[static_cast<std::size_t>(rows - 1)][columns > kLanes<T> ? 1 : 0];
}

// packed[p][i] = a[i][columns[p]] for kRows rows: the left operand of a panel_block.
template <int kRows, class T>
void pack_rows(const T* a, std::int64_t a_row, std::span<const std::int64_t> columns, T* packed) {
  for (const std::int64_t column : columns) {
    unrolled<kRows>([&](auto i) LOCKSTEP_INLINE { packed[i] = a[i * a_row + column]; });
    packed += kRows;
  }
}

template <class T>
using PackRows = void (*)(const T* a, std::int64_t a_row, std::span<const std::int64_t> columns, T* packed);
// pack_rows of 1 to kPanelRows rows.
template <class T>
PackRows<T> pack_rows_of(std::int64_t rows) {
  static constexpr auto kPacks = []<int... kLess>(std::integer_sequence<int, kLess...>) {
    return std::array<PackRows<T>, sizeof...(kLess)>{pack_rows<kLess + 1, T>...};
  }
  (std::make_integer_sequence<int, kPanelRows<T>>());
  return kPacks[static_cast<std::size_t>(rows - 1)];
}

// The products of kDotLeft and kDotRight rows, lane by lane.
template <class T>
class DotBlock {
 public:
  DotBlock() {
    unrolled<kSums>([&](auto i) LOCKSTEP_INLINE { sums_[i] = simd::pset1<R>(T(0)); });
  }
  // Adds the products of `columns` elements of each row, a multiple of the lanes.
  void add(const T* const* left, const T* const* right, std::int64_t columns) {
    R sums[kSums];
    unrolled<kSums>([&](auto i) LOCKSTEP_INLINE { sums[i] = sums_[i]; });
    for (std::int64_t q = 0; q < columns; q += kLanes<T>) {
      R a[kDotLeft<T>];
      unrolled<kDotLeft<T>>([&](auto i) LOCKSTEP_INLINE { a[i] = simd::ploadu<R>(left[i] + q); });
      unrolled<kDotRight<T>>([&](auto j) LOCKSTEP_INLINE {
        R b = simd::ploadu<R>(right[j] + q);
#ifndef __clang__
        EIGEN_OPTIMIZATION_BARRIER(b)  // GCC would load it again for each product
#endif
        unrolled<kDotLeft<T>>([&](auto i) LOCKSTEP_INLINE {
          R& sum = sums[i * kDotRight<T> + j];
          sum = simd::pmadd(a[i], b, sum);
        });
      });
    }
    unrolled<kSums>([&](auto i) LOCKSTEP_INLINE { sums_[i] = sums[i]; });
  }
  // The sum of the lanes of one product.
  T sum(int i, int j) const { return simd::predux(sums_[i * kDotRight<T> + j]); }

 private:
  using R = Register<T>;
  static constexpr int kSums = kDotLeft<T> * kDotRight<T>;
  R sums_[kSums];
};

#undef LOCKSTEP_INLINE

}  // namespace lockstep::LOCKSTEP_KERNELS
