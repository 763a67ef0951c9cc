// Products of 16-bit matrices by tensor cores, which every warp of a block computes for itself. Included by kernels
// only, inside their namespace.
//
// The threads of a warp hold parts of small matrices. A thread of lane l has, as PTX defines for mma.m16n8k16:
// - of a left operand (16, 16): rows l / 4 and l / 4 + 8, and of these columns 2 (l % 4), the next one, and both + 8;
// - of a right operand (16, 8): the same numbers as rows, of column l / 4;
// - of the sums (16, 8): rows l / 4 and l / 4 + 8, columns 2 (l % 4) and the next one.
// Other compilers than nvcc compute the same products in loops.
#pragma once

#include <cmath>

#include "lockstep/tensor/cuda/tile_internal.h"

#if defined(__NVCC__) && defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
#define HAS_TENSOR_CORES
#endif

namespace lockstep::LOCKSTEP_KERNELS {

// Whether all GPUs for which the code is compiled have the instructions.
constexpr bool has_tensor_cores() {
#ifdef __CUDA_ARCH_LIST__
  for (const int architecture : {__CUDA_ARCH_LIST__}) {
    if (architecture < 800) return false;
  }
#endif
  return true;
}

struct LeftPart {  // rows l / 4 and l / 4 + 8 of the first 8 columns, then of the others; two elements in a word
  std::uint32_t words[4];
};
struct RightPart {
  std::uint32_t words[2];
};
struct SumsPart {  // two columns of row l / 4, then of row l / 4 + 8
  float at[4];
};
struct RightParts {  // of two right operands
  RightPart each[2];
};

// The row and column of element i of a SumsPart.
DEVICE_ONLY inline int sums_row(int thread, int i) { return thread % kWarp / 4 + i / 2 * 8; }
DEVICE_ONLY inline int sums_column(int thread, int i) { return thread % 4 * 2 + i % 2; }

// Two numbers, rounded, as a word.
template <class T>
DEVICE_ONLY std::uint32_t packed(float low, float high) {
#ifdef HAS_TENSOR_CORES
  std::uint32_t word;
  if constexpr (std::is_same_v<T, Half>)
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(word) : "f"(high), "f"(low));
  else
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(word) : "f"(high), "f"(low));
  return word;
#else
  return std::uint32_t{narrow<T>(low).bits} | std::uint32_t{narrow<T>(high).bits} << 16;
#endif
}

// 2^x; at most 2 units in the last place from it, and 0 below 2^-126.
DEVICE_ONLY inline float fast_exp2(float x) {
#ifdef HAS_TENSOR_CORES
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
#else
  return std::exp2(x);
#endif
}

namespace detail {

template <class T>
DEVICE_ONLY float element(std::uint32_t word, int i) {
  return to_float(T{static_cast<std::uint16_t>(word >> (16 * i))});
}

// A thread's sums, from the parts of all threads of its warp.
template <class T, class Left, class Right>
DEVICE_ONLY void multiply_add_by_loops(int thread, Left left, Right right, SumsPart& sums) {
  const int first = thread / kWarp * kWarp;
  for (int i = 0; i < 4; ++i) {
    const int row = sums_row(thread, i), column = sums_column(thread, i);
    for (int k = 0; k < 16; ++k) {
      const std::uint32_t a = left(first + row % 8 * 4 + k % 8 / 2).words[row / 8 + k / 8 * 2],
                          b = right(first + column * 4 + k % 8 / 2).words[k / 8];
      sums.at[i] += element<T>(a, k % 2) * element<T>(b, k % 2);
    }
  }
}

}  // namespace detail

// sums += left right, for every warp; the arguments are functions of a thread.
template <class T, class Left, class Right, class Sums>
DEVICE_ONLY void multiply_add(const Block& block, Left left, Right right, Sums sums) {
#if defined(HAS_TENSOR_CORES)
  block.each_alone([&](int thread) {
    const LeftPart& a = left(thread);
    const RightPart& b = right(thread);
    SumsPart& c = sums(thread);
    if constexpr (std::is_same_v<T, Half>)
      asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
          "{%0, %1, %2, %3};"
          : "+f"(c.at[0]), "+f"(c.at[1]), "+f"(c.at[2]), "+f"(c.at[3])
          : "r"(a.words[0]), "r"(a.words[1]), "r"(a.words[2]), "r"(a.words[3]), "r"(b.words[0]), "r"(b.words[1]));
    else
      asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
          "{%0, %1, %2, %3};"
          : "+f"(c.at[0]), "+f"(c.at[1]), "+f"(c.at[2]), "+f"(c.at[3])
          : "r"(a.words[0]), "r"(a.words[1]), "r"(a.words[2]), "r"(a.words[3]), "r"(b.words[0]), "r"(b.words[1]));
  });
#elif defined(__NVCC__)    // an older GPU, for which has_tensor_cores() is false
  static_cast<void>(block), static_cast<void>(left), static_cast<void>(right), static_cast<void>(sums);
#elif defined(__CUDACC__)  // the simulator, whose threads see only their own parts
  BLOCK_SHARED LeftPart lefts[kThreads];
  BLOCK_SHARED RightPart rights[kThreads];
  block.each_alone([&](int thread) {
    lefts[thread] = left(thread), rights[thread] = right(thread);
    static_cast<void>(__shfl_sync(0xffffffffu, 0, 0));  // waits for the warp
    detail::multiply_add_by_loops<T>(
        thread, [&](int i) { return lefts[i]; }, [&](int i) { return rights[i]; }, sums(thread));
    static_cast<void>(__shfl_sync(0xffffffffu, 0, 0));
  });
#else
  block.each([&](int thread) { detail::multiply_add_by_loops<T>(thread, left, right, sums(thread)); });
#endif
}

// Four (8, 8) matrices as right operands; row(i) is row i % 8 of matrix i / 8 in shared memory. A thread gets two
// elements of row l / 4 of each, or if kTransposed of column l / 4.
template <bool kTransposed, class Row>
DEVICE_ONLY RightParts load_right(int thread, Row row) {
  const int lane = thread % kWarp;
  RightParts out;
#if defined(HAS_TENSOR_CORES)
  const auto address = static_cast<std::uint32_t>(__cvta_generic_to_shared(row(lane)));
  if constexpr (kTransposed)
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(out.each[0].words[0]), "=r"(out.each[0].words[1]), "=r"(out.each[1].words[0]),
                   "=r"(out.each[1].words[1])
                 : "r"(address)
                 : "memory");
  else
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(out.each[0].words[0]), "=r"(out.each[0].words[1]), "=r"(out.each[1].words[0]),
                   "=r"(out.each[1].words[1])
                 : "r"(address)
                 : "memory");
#else
  for (int i = 0; i < 4; ++i) {
    const int first = i * 8, at = lane / 4, pair = lane % 4 * 2;
    const std::uint32_t low = kTransposed ? row(first + pair)[at] : row(first + at)[pair],
                        high = kTransposed ? row(first + pair + 1)[at] : row(first + at)[pair + 1];
    out.each[i / 2].words[i % 2] = low | high << 16;
  }
#endif
  return out;
}

// Starts to copy 16 bytes to shared memory, or stores zeros unless `is_inside`.
DEVICE_ONLY inline void start_copy(void* to, const void* from, bool is_inside) {
#if defined(HAS_TENSOR_CORES)
  asm volatile(
      "cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(static_cast<std::uint32_t>(__cvta_generic_to_shared(to))),
      "l"(__cvta_generic_to_global(from)), "r"(is_inside ? 16 : 0)
      : "memory");
#else
  // Not by memcpy, which AddressSanitizer intercepts: only kernels may read a device's memory.
  for (int i = 0; i < 8; ++i)
    static_cast<std::uint16_t*>(to)[i] = is_inside ? static_cast<const std::uint16_t*>(from)[i] : std::uint16_t{0};
#endif
}
// The copies that this thread started since the last call are one group.
DEVICE_ONLY inline void end_copies() {
#ifdef HAS_TENSOR_CORES
  asm volatile("cp.async.commit_group;" ::: "memory");
#endif
}
// Waits for this thread's copies, except for its last kGroups groups.
template <int kGroups>
DEVICE_ONLY void wait_for_copies() {
#ifdef HAS_TENSOR_CORES
  asm volatile("cp.async.wait_group %0;" ::"n"(kGroups) : "memory");
#endif
}

// A tile of (kRows, kColumns) 16-bit elements in shared memory, from which warps read right operands. The order of a
// row's vectors of 16 bytes depends on the row: 8 rows' vectors with one number lie in different banks.
template <class T, int kRows, int kColumns>
class PackedTile {
 public:
  static constexpr int kChunks = kColumns / 8, kVectors = kRows * kChunks;
  static_assert(kChunks >= 4 && kVectors % kThreads == 0);
  using Vector = Pack<std::uint16_t, 8>;

  DEVICE_ONLY explicit PackedTile(Vector* memory) : memory_(memory) {}
  DEVICE_ONLY std::uint16_t* vector(int row, int chunk) const {
    return memory_[row * kChunks + (chunk ^ (kChunks >= 8 ? row % 8 : row / 2 % 4))].values;
  }
  // This thread's part of copying rows, whose vectors are aligned; zeros after the last row.
  DEVICE_ONLY void start_load(int thread, const MatrixRows<T>& from) const {
    thread = recomputed(thread);
    const int end = from.rows < kRows ? static_cast<int>(from.rows) : kRows;
    UNROLL_ALL
    for (int n = 0; n < kVectors / kThreads; ++n) {
      const int row = (thread + n * kThreads) / kChunks, chunk = (thread + n * kThreads) % kChunks;
      const bool is_inside = row < end;
      start_copy(vector(row, chunk), is_inside ? from.data + row * from.stride + chunk * 8 : from.data, is_inside);
    }
  }

  // sums(thread)[n] += left r^T, where r is rows [first + 8 n, first + 8 n + 8) and left(thread)[s] has columns
  // [16 s, 16 s + 16), for n < kCount.
  template <int kCount, class Left, class Sums>
  DEVICE_ONLY void add_by_rows(const Block& block, Left left, int first, Sums sums) const {
    PerThread<int> own;
    block.each_alone([&](int thread) { own[thread] = recomputed(thread); });
    UNROLL_ALL
    for (int s = 0; s < kColumns / 16; ++s) {
      UNROLL_ALL
      for (int n = 0; n < kCount; n += 2) {
        PerThread<RightParts> right;
        block.each_alone([&](int thread) {
          right[thread] = load_right<false>(own[thread], [&](int i) {
            return static_cast<const std::uint16_t*>(vector(first + n * 8 + i / 16 * 8 + i % 8, 2 * s + i / 8 % 2));
          });
        });
        add(
            block, [&](int t) -> const LeftPart& { return left(t)[s]; }, right, n, sums);
      }
    }
  }
  // sums(thread)[n] += left r, where r is rows [first, first + 16 kSteps), columns [8 n, 8 n + 8), and left(thread)[s]
  // has columns [16 s, 16 s + 16).
  template <int kSteps, class Left, class Sums>
  DEVICE_ONLY void add_by_columns(const Block& block, Left left, int first, Sums sums) const {
    PerThread<int> own;
    block.each_alone([&](int thread) { own[thread] = recomputed(thread); });
    UNROLL_ALL
    for (int s = 0; s < kSteps; ++s) {
      UNROLL_ALL
      for (int n = 0; n < kColumns / 8; n += 2) {
        PerThread<RightParts> right;
        block.each_alone([&](int thread) {
          right[thread] = load_right<true>(own[thread], [&](int i) {
            return static_cast<const std::uint16_t*>(vector(first + s * 16 + i % 16, n + i / 16));
          });
        });
        add(
            block, [&](int t) -> const LeftPart& { return left(t)[s]; }, right, n, sums);
      }
    }
  }

 private:
  template <class Left, class Sums>
  DEVICE_ONLY static void add(const Block& block, Left left, PerThread<RightParts>& right, int n, Sums sums) {
    UNROLL_ALL
    for (int i = 0; i < 2; ++i) {
      multiply_add<T>(
          block, left, [&](int t) -> const RightPart& { return right[t].each[i]; },
          [&](int t) -> SumsPart& { return sums(t)[n + i]; });
    }
  }

  Vector* memory_;
};

// The left operands (16, 16) of the 16 rows of this thread's warp, one for each 16 columns; zeros after the last row.
// The first warp has the first rows.
template <class T, int kSteps>
DEVICE_ONLY void load_left(int thread, const MatrixRows<T>& from, LeftPart* to) {
  thread = recomputed(thread);
  UNROLL_ALL
  for (int i = 0; i < 4; ++i) {
    const int row = thread / kWarp * 16 + thread % kWarp / 4 + i % 2 * 8, column = thread % 4 * 2 + i / 2 * 8;
    UNROLL_ALL
    for (int s = 0; s < kSteps; ++s) {
      to[s].words[i] = 0;
      if (row < from.rows)
        to[s].words[i] = *reinterpret_cast<const std::uint32_t*>(from.data + row * from.stride + s * 16 + column);
    }
  }
}

// Sums as left operands of another product.
template <class T, int kSteps>
DEVICE_ONLY void as_left(const SumsPart* sums, LeftPart* to) {
  UNROLL_ALL
  for (int s = 0; s < kSteps; ++s) {
    UNROLL_ALL
    for (int i = 0; i < 4; ++i) {
      const float* const pair = sums[2 * s + i / 2].at + i % 2 * 2;
      to[s].words[i] = packed<T>(pair[0], pair[1]);
    }
  }
}

}  // namespace lockstep::LOCKSTEP_KERNELS
