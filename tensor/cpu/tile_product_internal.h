// Products of small matrices in registers, for attention: the operands are tiles in the first-level cache, rows padded
// to whole panels of columns.
#pragma once

#include <Eigen/Core>

#include <algorithm>
#include <cstdint>

#include "lockstep/tensor/kernels/level_internal.h"

namespace lockstep::LOCKSTEP_KERNELS {

namespace simd = Eigen::internal;
template <class T>
using Register = typename simd::packet_traits<T>::type;
template <class T>
inline constexpr std::int64_t kLanes = simd::packet_traits<T>::size;
template <class T>
inline constexpr std::int64_t kPanel = 2 * kLanes<T>;  // columns of a block of a product
inline constexpr int kBlock = 6;                       // rows of a block: 12 sums, which fill the registers of AVX2

template <class T>
constexpr std::int64_t panels(std::int64_t columns) {
  return (columns + kPanel<T> - 1) / kPanel<T>;
}

// The left operand of a product: element (i, p) is data[i * stride + p], or data[p * stride + i] if transposed.
template <class T>
struct Left {
  const T* data;
  std::int64_t stride;
};
// The right operand: element (p, j) of panel n is data[n * panel + p * row + j].
template <class T>
struct Right {
  const T* data;
  std::int64_t row, panel;
};

// The products of a pair of tiles, named after the rows of the result. kQueries and kKeys add to the result; kScores
// overwrites it.
enum class TileProduct : std::uint8_t {
  kScores,   // (keys, queries), over the columns of keys or values
  kQueries,  // (queries, columns), over the keys; the left operand is transposed
  kKeys,     // (keys, columns), over the queries
};

// One block: kRows rows and one panel. Eigen's pmadd is a fused multiply-add where the instruction set has one, for all
// elements alike.
template <TileProduct kProduct, int kRows, class T>
void product_block(const Left<T>& a, const T* b, std::int64_t b_row, std::int64_t depth, T* out, std::int64_t out_row) {
  using R = Register<T>;
  constexpr bool kTransposed = kProduct == TileProduct::kQueries, kAdd = kProduct != TileProduct::kScores;
  R low[kRows], high[kRows];
  for (int i = 0; i < kRows; ++i) low[i] = high[i] = simd::pset1<R>(T(0));
  for (std::int64_t p = 0; p < depth; ++p) {
    const R first = simd::ploadu<R>(b + p * b_row), second = simd::ploadu<R>(b + p * b_row + kLanes<T>);
    for (int i = 0; i < kRows; ++i) {
      const R factor = simd::pset1<R>(kTransposed ? a.data[p * a.stride + i] : a.data[i * a.stride + p]);
      low[i] = simd::pmadd(factor, first, low[i]);
      high[i] = simd::pmadd(factor, second, high[i]);
    }
  }
  for (int i = 0; i < kRows; ++i) {
    T* const to = out + i * out_row;
    simd::pstoreu(to, kAdd ? simd::padd(simd::ploadu<R>(to), low[i]) : low[i]);
    simd::pstoreu(to + kLanes<T>, kAdd ? simd::padd(simd::ploadu<R>(to + kLanes<T>), high[i]) : high[i]);
  }
}

// All rows, and the panels that cover `columns`. Query i of the tile attends to keys 0 to i + reach of the tile; blocks
// of scores and parts of sums beyond that are left out.
template <TileProduct kProduct, class T>
void tile_product(std::int64_t rows, std::int64_t columns, std::int64_t depth, std::int64_t reach, const Left<T>& a,
                  const Right<T>& b, T* out, std::int64_t out_row) {
  for (std::int64_t n = 0; n < panels<T>(columns); ++n) {
    for (std::int64_t i = 0; i < rows; i += kBlock) {
      std::int64_t begin = 0, end = depth;
      if (kProduct == TileProduct::kScores && i > reach + (n + 1) * kPanel<T> - 1) break;
      if (kProduct == TileProduct::kQueries) end = std::min(depth, reach + i + kBlock);
      if (kProduct == TileProduct::kKeys) begin = std::clamp<std::int64_t>(i - reach, 0, depth);
      const std::int64_t start = kProduct == TileProduct::kQueries ? begin * a.stride + i : i * a.stride + begin;
      const auto run = [&]<int kRows>() {
        product_block<kProduct, kRows>(Left<T>{a.data + start, a.stride}, b.data + n * b.panel + begin * b.row, b.row,
                                       end - begin, out + i * out_row + n * kPanel<T>, out_row);
      };
      switch (rows - i) {
        case 1:
          run.template operator()<1>();
          break;
        case 2:
          run.template operator()<2>();
          break;
        case 3:
          run.template operator()<3>();
          break;
        case 4:
          run.template operator()<4>();
          break;
        case 5:
          run.template operator()<5>();
          break;
        default:
          run.template operator()<kBlock>();
      }
    }
  }
}

}  // namespace lockstep::LOCKSTEP_KERNELS
