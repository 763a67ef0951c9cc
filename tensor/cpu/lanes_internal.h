// Matrices with their rows in the lanes of registers: transposed, a register of rows at a time.
#pragma once

#include <algorithm>
#include <cstdint>

#include "lockstep/tensor/cpu/tile_product_internal.h"
#include "lockstep/tensor/kernels/level_internal.h"

namespace lockstep::LOCKSTEP_KERNELS {

// Calls body(r, column r) for the columns of a block of as many rows as lanes.
template <class T, class F>
[[gnu::always_inline]] inline void transpose_block(const T* from, std::int64_t from_row, F body) {
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wignored-attributes"  // the alignment of a register, which Eigen's type has anyway
  simd::PacketBlock<Register<T>, kLanes<T>> block;
#pragma GCC diagnostic pop
  for (std::int64_t r = 0; r < kLanes<T>; ++r) block.packet[r] = simd::ploadu<Register<T>>(from + r * from_row);
  simd::ptranspose(block);
  for (std::int64_t r = 0; r < kLanes<T>; ++r) body(r, block.packet[r]);
}

// to[k][i] = from[i][k] for `rows` rows, a multiple of the lanes, and `count` columns.
template <class T>
void into_lanes(const T* from, std::int64_t from_row, std::int64_t rows, std::int64_t count, T* to) {
  const std::int64_t whole = count / kLanes<T> * kLanes<T>;
  for (std::int64_t k = 0; k < whole; k += kLanes<T>) {
    for (std::int64_t i = 0; i < rows; i += kLanes<T>)
      transpose_block(from + i * from_row + k, from_row, [&](std::int64_t r, const Register<T>& column) {
        simd::pstoreu(to + (k + r) * rows + i, column);
      });
  }
  for (std::int64_t k = whole; k < count; ++k) {
    for (std::int64_t i = 0; i < rows; ++i) to[k * rows + i] = from[i * from_row + k];
  }
}

// to[i][k] = from[k][i], plus bias[i] if there is one, for `rows` rows of `to` and `count` columns. Reads some rows of
// `from` past the last one, fewer than there are lanes.
template <class T>
void out_of_lanes(const T* from, std::int64_t rows, std::int64_t count, const T* bias, T* to, std::int64_t to_row) {
  for (std::int64_t k = 0; k < count; k += kLanes<T>) {
    for (std::int64_t i = 0; i < rows; i += kLanes<T>)
      transpose_block(from + k * rows + i, rows, [&](std::int64_t r, const Register<T>& columns) {
        const Register<T> shifted = bias ? simd::padd(columns, simd::pset1<Register<T>>(bias[i + r])) : columns;
        T* const target = to + (i + r) * to_row + k;
        if (count - k >= kLanes<T>) return simd::pstoreu(target, shifted);
        T lanes[kLanes<T>];
        simd::pstoreu(lanes, shifted);
        std::copy(lanes, lanes + (count - k), target);
      });
  }
}

}  // namespace lockstep::LOCKSTEP_KERNELS
