// Square tiles of matrices in the memory that the threads of a block share, and products of two tiles. Included by
// kernels only, inside their namespace.
#pragma once

#include "lockstep/tensor/cuda/loops_internal.h"
#include "lockstep/tensor/kernels/wide_internal.h"

namespace lockstep::LOCKSTEP_KERNELS {

// Rows in device memory; columns are consecutive.
template <class T>
struct MatrixRows {
  const T* data;
  std::int64_t stride;  // of a row
  std::int64_t rows, columns;

  DEVICE_ONLY MatrixRows from_row(std::int64_t first) const {
    return {data + first * stride, stride, rows - first, columns};
  }
  DEVICE_ONLY MatrixRows from_column(std::int64_t first) const { return {data + first, stride, rows, columns - first}; }
};

// The same number, which the compiler takes for a new one. Addresses that depend on the result are computed where they
// are used; otherwise they stay in registers for the whole kernel, or are spilled.
DEVICE_ONLY inline int recomputed(int x) {
#ifdef __NVCC__
  asm volatile("" : "+r"(x));
#endif
  return x;
}

// A tile of (kSide, kSide) elements of type W. The threads of a block form a square of 16 rows; each computes a square
// of kEach rows and columns of a product. It reads a tile by vectors of 16 bytes. Vector `chunk` of a row lies at
// chunk ^ (row / kEach): where 8 threads read the same vector of rows that are kEach apart, or a row's vectors, the
// addresses are in different banks.
template <class W>
class Tile {
 public:
  static constexpr int kThreadRows = 16, kEach = 16 / static_cast<int>(sizeof(W)), kSide = kThreadRows * kEach;
  static constexpr int kVectors = kSide * kThreadRows;
  static_assert(kThreadRows * kThreadRows == kThreads);
  using Vector = Pack<W, kEach>;
  struct Square {
    W at[kEach][kEach];
  };

  DEVICE_ONLY explicit Tile(Vector* memory) : memory_(memory) {}
  DEVICE_ONLY static int row_of(int thread) { return thread / kThreadRows * kEach; }
  DEVICE_ONLY static int column_of(int thread) { return thread % kThreadRows * kEach; }
  DEVICE_ONLY Vector& vector(int row, int chunk) const { return memory_[row * kThreadRows + (chunk ^ row / kEach)]; }

  // This thread's part of copying `from`, times `factor`; zeros where it has no element.
  template <class T>
  DEVICE_ONLY void load(int thread, const MatrixRows<T>& from, W factor) const {
    thread = recomputed(thread);
    constexpr int kStep = kThreads / kSide, kLoads = kSide / kStep;  // rows of the whole block, and of a thread
    const int first = thread / kSide, column = thread % kSide,
              end = from.rows < kSide ? static_cast<int>(from.rows) : kSide;
    const bool is_inside = column < from.columns;
    const T* next = from.data + first * from.stride + column;
    constexpr int kAhead = kLoads < 8 ? kLoads : 8;  // loads before the first store
    ONE_BY_ONE
    for (int done = 0; done < kLoads; done += kAhead) {
      W values[kAhead];
      UNROLL_ALL
      for (int n = 0; n < kAhead; ++n, next += kStep * from.stride)
        values[n] = is_inside && first + (done + n) * kStep < end ? widen(*next) * factor : W(0);
      UNROLL_ALL
      for (int n = 0; n < kAhead; ++n)
        vector(first + (done + n) * kStep, column / kEach).values[column % kEach] = values[n];
    }
  }

  // Stores this thread's square of the tile, or of its transpose.
  DEVICE_ONLY void store(int thread, const Square& x) const {
    thread = recomputed(thread);
    UNROLL_ALL
    for (int i = 0; i < kEach; ++i) {
      Vector row;
      UNROLL_ALL
      for (int j = 0; j < kEach; ++j) row.values[j] = x.at[i][j];
      vector(row_of(thread) + i, thread % kThreadRows) = row;
    }
  }
  DEVICE_ONLY void store_transposed(int thread, const Square& x) const {
    thread = recomputed(thread);
    UNROLL_ALL
    for (int j = 0; j < kEach; ++j) {
      Vector row;
      UNROLL_ALL
      for (int i = 0; i < kEach; ++i) row.values[i] = x.at[i][j];
      vector(column_of(thread) + j, thread / kThreadRows) = row;
    }
  }

  // Multiplies a square by this thread's square of the tile, element by element.
  DEVICE_ONLY void multiply(int thread, Square& x) const {
    thread = recomputed(thread);
    UNROLL_ALL
    for (int i = 0; i < kEach; ++i) {
      const Vector row = vector(row_of(thread) + i, thread % kThreadRows);
      UNROLL_ALL
      for (int j = 0; j < kEach; ++j) x.at[i][j] *= row.values[j];
    }
  }

  // Adds this thread's square of a b^T.
  DEVICE_ONLY static void add_by_rows(int thread, const Tile& a, const Tile& b, Square& sums) {
    thread = recomputed(thread);
    UNROLL_BY_2
    for (int chunk = 0; chunk < kThreadRows; ++chunk) {
      Vector x[kEach], y[kEach];
      UNROLL_ALL
      for (int i = 0; i < kEach; ++i) x[i] = a.vector(row_of(thread) + i, chunk);
      UNROLL_ALL
      for (int j = 0; j < kEach; ++j) y[j] = b.vector(column_of(thread) + j, chunk);
      UNROLL_ALL
      for (int k = 0; k < kEach; ++k) {
        UNROLL_ALL
        for (int i = 0; i < kEach; ++i) {
          UNROLL_ALL
          for (int j = 0; j < kEach; ++j) sums.at[i][j] += x[i].values[k] * y[j].values[k];
        }
      }
    }
  }
  // Adds this thread's square of a b.
  DEVICE_ONLY static void add_by_columns(int thread, const Tile& a, const Tile& b, Square& sums) {
    thread = recomputed(thread);
    UNROLL_BY_2
    for (int chunk = 0; chunk < kThreadRows; ++chunk) {
      Vector x[kEach];
      UNROLL_ALL
      for (int i = 0; i < kEach; ++i) x[i] = a.vector(row_of(thread) + i, chunk);
      UNROLL_ALL
      for (int k = 0; k < kEach; ++k) {
        const Vector y = b.vector(chunk * kEach + k, thread % kThreadRows);
        UNROLL_ALL
        for (int i = 0; i < kEach; ++i) {
          UNROLL_ALL
          for (int j = 0; j < kEach; ++j) sums.at[i][j] += x[i].values[k] * y.values[j];
        }
      }
    }
  }

 private:
  Vector* memory_;
};

}  // namespace lockstep::LOCKSTEP_KERNELS
