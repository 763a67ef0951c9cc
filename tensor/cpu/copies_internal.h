// Copies elements from one layout to another.
#pragma once

#include <Eigen/Core>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "lockstep/tensor/cpu/loops_internal.h"

namespace lockstep::LOCKSTEP_KERNELS {

// Copies at least kPiece bytes, in pieces, the last of which may overlap.
template <std::size_t kPiece>
void copy_pieces(char* to, const char* from, std::size_t bytes) {
  for (std::size_t at = 0; at + kPiece < bytes; at += kPiece) std::memcpy(to + at, from + at, kPiece);
  std::memcpy(to + bytes - kPiece, from + bytes - kPiece, kPiece);
}

// As memcpy, whose call costs more than the copy of a few bytes.
inline void copy_bytes(void* to, const void* from, std::size_t bytes) {
  if (bytes < 16 || bytes > 256) {
    std::memcpy(to, from, bytes);
  } else if (bytes < 64) {
    copy_pieces<16>(static_cast<char*>(to), static_cast<const char*>(from), bytes);
  } else {
    copy_pieces<64>(static_cast<char*>(to), static_cast<const char*>(from), bytes);
  }
}

namespace detail {

template <class T>
struct CopiedRow {
  T* to;
  const T* from;
  std::int64_t to_step, from_step;

  void copy(std::int64_t count) const {
    if (to_step != 1) return copy_by(count, to_step, from_step);
    if (from_step == 1) return copy_bytes(to, from, static_cast<std::size_t>(count) * sizeof(T));
    if (from_step == 0) return std::fill_n(to, count, *from), void();
    if (from_step == -1) return copy_by(count, 1, -1);
    copy_by(count, 1, from_step);
  }

 private:
  [[gnu::always_inline]] void copy_by(std::int64_t count, std::int64_t to_by, std::int64_t from_by) const {
    LOCKSTEP_EACH_ELEMENT
    for (std::int64_t i = 0; i < count; ++i) to[i * to_by] = from[i * from_by];
  }
};

#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wignored-attributes"  // of a register's type as a template's argument
// Square blocks that registers transpose.
template <class T>
struct Block {
  using Number = std::conditional_t<sizeof(T) == 4, float, double>;
  static constexpr bool kInRegisters = sizeof(T) >= 4;
  using Lanes = typename Eigen::internal::packet_traits<Number>::type;
  static constexpr int kSide = kInRegisters ? Eigen::internal::packet_traits<Number>::size : 8;

  static void transpose(T* to, std::int64_t to_step, const T* from, std::int64_t from_step) {
    if constexpr (kInRegisters) {
      Eigen::internal::PacketBlock<Lanes, kSide> block;
      for (int i = 0; i < kSide; ++i)
        block.packet[i] = Eigen::internal::ploadu<Lanes>(reinterpret_cast<const Number*>(from + i * from_step));
      Eigen::internal::ptranspose(block);
      for (int i = 0; i < kSide; ++i)
        Eigen::internal::pstoreu(reinterpret_cast<Number*>(to + i * to_step), block.packet[i]);
    } else {
      for (int i = 0; i < kSide; ++i) {
        for (int j = 0; j < kSide; ++j) to[j * to_step + i] = from[i * from_step + j];
      }
    }
  }
};
#pragma GCC diagnostic pop

// A part of a matrix, copied to another layout.
template <class T>
struct CopiedPlane {
  // A tile of a transposed copy: long rows, because a power of two between them is common, and lets few lines of them
  // stay in a cache.
  static constexpr std::int64_t kHeight = 64, kWidth = 512 / sizeof(T), kPadding = 64 / sizeof(T);

  T* to;
  const T* from;
  std::int64_t to_row, to_column, from_row, from_column;

  bool is_transposed(std::int64_t rows, std::int64_t columns) const {
    return to_column == 1 && from_row == 1 && from_column != 0 && rows >= Block<T>::kSide && columns >= Block<T>::kSide;
  }

  void copy(std::int64_t rows, std::int64_t columns) const {
    constexpr std::int64_t kShort = 16;
    const bool is_dense = to_column == 1 && from_column == 1;
    if (columns < std::min(rows, is_dense ? kShort / static_cast<std::int64_t>(sizeof(T)) : kShort)) {
      for (std::int64_t j = 0; j < columns; ++j)
        CopiedRow<T>{to + j * to_column, from + j * from_column, to_row, from_row}.copy(rows);
      return;
    }
    for (std::int64_t i = 0; i < rows; ++i)
      CopiedRow<T>{to + i * to_row, from + i * from_row, to_column, from_column}.copy(columns);
  }

  // At most kHeight rows and kWidth columns. The last blocks may overlap others.
  void transpose(std::int64_t rows, std::int64_t columns) const {
    constexpr std::int64_t kSide = Block<T>::kSide, kStep = kWidth + kPadding;
    if (rows < kSide || columns < kSide) return copy(rows, columns);
    alignas(64) T tile[kHeight * kStep];
    for (std::int64_t j = 0; j < columns; j += kSide) {
      const std::int64_t column = std::min(j, columns - kSide);
      for (std::int64_t i = 0; i < rows; i += kSide) {
        const std::int64_t row = std::min(i, rows - kSide);
        Block<T>::transpose(tile + row * kStep + column, kStep, from + row + column * from_column, from_column);
      }
    }
    for (std::int64_t i = 0; i < rows; ++i)
      std::memcpy(to + i * to_row, tile + i * kStep, static_cast<std::size_t>(columns) * sizeof(T));
  }
};

inline void move_dim(Loop<2>& loop, int from, int to) {
  const auto move = [=](std::int64_t* values) {
    if (from < to) std::rotate(values + from, values + from + 1, values + to + 1);
    if (from > to) std::rotate(values + to, values + from, values + from + 1);
  };
  move(loop.shape);
  for (auto& strides : loop.strides) move(strides);
}

// The dimensions in order of the output's memory; but if the input's elements lie together along another one than the
// last, that one is the last but one.
inline Loop<2> ordered_dims(Loop<2> loop) {
  const int last = loop.dims - 1;
  for (int d = 1; d <= last; ++d) {
    int to = d;
    while (to > 0 && loop.strides[0][to - 1] < loop.strides[0][d]) --to;
    move_dim(loop, d, to);
  }
  if (loop.strides[1][last] == 0 || loop.strides[1][last] == 1) return loop;
  for (int d = 0; d < last; ++d) {
    if (loop.strides[1][d] != 1) continue;
    move_dim(loop, d, last - 1);
    break;
  }
  return loop;
}

}  // namespace detail

// Operand 0 = operand 1.
template <class T>
void copy_elements(const Loop<2>& given) {
  if (given.numel == 0) return;
  const Loop<2> loop = detail::ordered_dims(given);
  T* const to = static_cast<T*>(loop.data[0]);
  const T* const from = static_cast<const T*>(loop.data[1]);
  const int of_rows = loop.dims - 2, of_columns = loop.dims - 1;
  if (of_rows < 0) {
    const std::int64_t to_step = loop.strides[0][0], from_step = loop.strides[1][0];
    return for_parts(loop.numel, 1, [=](std::int64_t begin, std::int64_t end) {
      detail::CopiedRow<T>{to + begin * to_step, from + begin * from_step, to_step, from_step}.copy(end - begin);
    });
  }
  const detail::CopiedPlane<T> whole = {to,
                                        from,
                                        loop.strides[0][of_rows],
                                        loop.strides[0][of_columns],
                                        loop.strides[1][of_rows],
                                        loop.strides[1][of_columns]};
  const std::int64_t rows = loop.shape[of_rows], columns = loop.shape[of_columns];
  const bool is_transposed = whole.is_transposed(rows, columns);
  constexpr std::int64_t kArea = 1 << 12;
  const std::int64_t width = is_transposed ? whole.kWidth : std::min(columns, kChunk);
  const std::int64_t height = is_transposed ? whole.kHeight : std::max<std::int64_t>(kArea / width, 1);
  const std::int64_t across = (columns + width - 1) / width, down = (rows + height - 1) / height;
  Loop<2> planes = loop;
  planes.dims = of_rows;
  for_units(loop.numel / (rows * columns) * across * down, width * std::min(height, rows), [=](std::int64_t unit) {
    const std::int64_t row = unit / across % down * height, column = unit % across * width;
    std::int64_t offsets[2] = {};
    add_offsets(planes, unit / (across * down), offsets);
    detail::CopiedPlane<T> plane = whole;
    plane.to += offsets[0] + row * whole.to_row + column * whole.to_column;
    plane.from += offsets[1] + row * whole.from_row + column * whole.from_column;
    const std::int64_t own_rows = std::min(height, rows - row), own_columns = std::min(width, columns - column);
    is_transposed ? plane.transpose(own_rows, own_columns) : plane.copy(own_rows, own_columns);
  });
}

}  // namespace lockstep::LOCKSTEP_KERNELS
