// Random kernels: element i depends on the position and i alone.
#include "lockstep/tensor/kernels/level_internal.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#ifdef __SSE2__
#include <immintrin.h>
#endif

#include "lockstep/tensor/cpu/loops_internal.h"
#include "lockstep/tensor/kernels/dual_internal.h"
#include "lockstep/tensor/random/philox_internal.h"

namespace lockstep::LOCKSTEP_KERNELS {

namespace {

// Words of several counters in the lower halves of lanes. The upper halves are arbitrary.
#if defined(__AVX512F__)
constexpr int kLanes = 8;
#elif defined(__AVX2__)
constexpr int kLanes = 4;
#else
constexpr int kLanes = 2;
#endif
using Lanes = std::uint64_t __attribute__((vector_size(8 * kLanes)));
using LowerHalves = std::uint32_t __attribute__((vector_size(4 * kLanes)));

struct LaneProduct {
  static Lanes of(std::uint32_t a, const Lanes& b) {
#if defined(__AVX512F__)  // the instruction, which GCC 12 does not find
    return (Lanes)_mm512_mul_epu32(_mm512_set1_epi64(a), (__m512i)b);
#elif defined(__AVX2__)
    return (Lanes)_mm256_mul_epu32(_mm256_set1_epi64x(a), (__m256i)b);
#elif defined(__SSE2__)
    return (Lanes)_mm_mul_epu32(_mm_set1_epi64x(a), (__m128i)b);
#else
    return a * (b & 0xFFFFFFFFu);
#endif
  }
};

// Consecutive blocks of a position.
constexpr int kBatch = 32;
struct Batch {
  alignas(64) std::uint32_t words[4][kBatch];  // word w of block i at [w][i]
};

void draw_batch(const random::Position& position, std::uint64_t first, std::int64_t blocks, Batch& out) {
  Lanes numbers{};
  for (int lane = 0; lane < kLanes; ++lane) numbers[lane] = static_cast<std::uint64_t>(lane);
  for (std::int64_t i = 0; i < blocks; i += kLanes) {
    Lanes c[4] = {numbers + (first + static_cast<std::uint64_t>(i))};
    for (int lane = 0; lane < kLanes && position.part.own != 0; ++lane)
      c[0][lane] = block_of_draw(position.part, c[0][lane]);
    c[0] += position.offset;
    c[1] = c[0] >> 32;
    c[2] = Lanes{} + position.stream;
    c[3] = c[2] >> 32;
    philox_rounds<LaneProduct>(c, position.seed);
    for (int w = 0; w < 4; ++w) {
      const auto words = __builtin_convertvector(c[w], LowerHalves);
      std::memcpy(&out.words[w][i], &words, sizeof words);
    }
  }
}

// Calls fill(batch, its number of blocks, to) for all blocks, of kEach elements.
template <int kEach, class T, class F>
void for_batches(T* out, std::int64_t count, const random::Position& position, F fill) {
  constexpr std::int64_t kElements = kBatch * kEach;
  for_units((count + kElements - 1) / kElements, kElements, [=](std::int64_t b) {
    T* const to = out + b * kElements;
    const std::int64_t left = count - b * kElements, blocks = left < kElements ? (left + kEach - 1) / kEach : kBatch;
    Batch batch;
    draw_batch(position, static_cast<std::uint64_t>(b) * kBatch, blocks, batch);
    if (left >= blocks * kEach) return fill(batch, blocks, to);
    T values[kElements];  // the last block is not whole
    fill(batch, blocks, values);
    std::memcpy(to, values, static_cast<std::size_t>(left) * sizeof(T));
  });
}

// Calls fill(block, to) for all blocks.
template <int kEach, class T, class F>
void for_blocks(T* out, std::int64_t count, const random::Position& position, F fill) {
  for_batches<kEach>(out, count, position, [=](const Batch& batch, std::int64_t blocks, T* to) {
    for (std::int64_t i = 0; i < blocks; ++i)
      fill(PhiloxBlock{{batch.words[0][i], batch.words[1][i], batch.words[2][i], batch.words[3][i]}}, to + i * kEach);
  });
}

template <class T>
constexpr int kEachOf = 16 / sizeof(T);

// -2 log(x) for x in (0, 1]: x = 2^e m, sqrt(1/2) <= m < sqrt(2), and log(m) = 2 atanh(s).
inline double minus_two_log(double x) {
  constexpr std::uint64_t kRoot = 0x3FE6A09E667F3BCD, kOne = 0x3FF0000000000000, kBits = 52;  // sqrt(1/2) and 1
  const std::uint64_t shifted = std::bit_cast<std::uint64_t>(x) + (kOne - kRoot);
  const double e = std::bit_cast<double>(shifted >> kBits | 0x4330000000000000) - (0x1p52 + 1023);
  const double m = std::bit_cast<double>((shifted & ((std::uint64_t{1} << kBits) - 1)) + kRoot);
  const double s = (m - 1) / (m + 1), z = s * s;
  double p = 0.097920406654009686875;
  p = math::multiply_add(p, z, 0.11088096252657439772);
  p = math::multiply_add(p, z, 0.14286054548372918667);
  p = math::multiply_add(p, z, 0.19999997811040813537);
  p = math::multiply_add(p, z, 0.33333333337900747692);
  return math::multiply_add(e, -1.38629436111989061883, -4 * math::multiply_add(s * z, p, s));
}

// box_muller with relative errors below 2^-44 (found for all f32 uniforms), and no calls. The angle is k pi / 2 + r,
// |r| <= pi / 4, with pi / 2 in three parts: near its multiples, as in box_muller, the rounding of the angle decides.
inline void near_box_muller(double u, double v, double* first, double* second) {
  constexpr double kShift = 6755399441055744.0;  // 1.5 * 2^52: adding it leaves the rounded number in the low bits
  const double radius = std::sqrt(minus_two_log(1 - u));
  const double shifted = 4 * v + kShift, k = shifted - kShift;
  const double most = kTwoPi * v - k * 1.57079632673412561417;
  const double r = (most - k * 6.07710050630396597660e-11) - k * 2.02226624879595063154e-21, z = r * r;
  double p = -2.4761692117397675221e-8;
  p = math::multiply_add(p, z, 2.7555358307999161933e-6);
  p = math::multiply_add(p, z, -0.00019841263825601270355);
  p = math::multiply_add(p, z, 0.0083333333252766567901);
  p = math::multiply_add(p, z, -0.16666666666631620905);
  double q = 2.0630632250453963168e-9;
  q = math::multiply_add(q, z, -2.7555242333754093499e-7);
  q = math::multiply_add(q, z, 0.000024801578648835705088);
  q = math::multiply_add(q, z, -0.0013888888870590047481);
  q = math::multiply_add(q, z, 0.041666666666487823107);
  q = math::multiply_add(q, z, -0.49999999999999413741);
  const double sine = math::multiply_add(r * z, p, r), cosine = math::multiply_add(q, z, 1.0);
  const std::uint64_t quarter = std::bit_cast<std::uint64_t>(shifted);
  const bool odd = (quarter & 1) != 0;
  const double x = radius * (odd ? sine : cosine), y = radius * (odd ? cosine : sine);
  *first = ((quarter + 1) & 2) != 0 ? -x : x;
  *second = (quarter & 2) != 0 ? -y : y;
}

// x rounded to f32, if that is the same for all numbers within 2^-44 x of x; otherwise `doubt` becomes other than 0.
inline float rounded(double x, std::uint32_t& doubt) {
  const auto low = static_cast<float>(math::multiply_add(x, -0x1p-44, x));
  const auto high = static_cast<float>(math::multiply_add(x, 0x1p-44, x));
  doubt |= std::bit_cast<std::uint32_t>(low) ^ std::bit_cast<std::uint32_t>(high);
  return low;
}

// The values of box_muller, rounded to f32, in vector code: only where an error below 2^-44 may matter, about once in
// 2^20 values, by box_muller itself.
void normals(const std::uint32_t* u, const std::uint32_t* v, std::int64_t count, float* first, float* second) {
  std::uint32_t doubt = 0;
  for (std::int64_t i = 0; i < count; ++i) {
    double x, y;
    near_box_muller(uniform24(u[i]), uniform24(v[i]), &x, &y);
    first[i] = rounded(x, doubt);
    second[i] = rounded(y, doubt);
  }
  for (std::int64_t i = 0; i < count && doubt != 0; ++i) {
    double x, y;
    box_muller(uniform24(u[i]), uniform24(v[i]), &x, &y);
    first[i] = static_cast<float>(x);
    second[i] = static_cast<float>(y);
  }
}

}  // namespace

void uniform(void* out, std::int64_t count, DType dtype, const random::Position& position, double low, double high) {
  for_float(dtype, [&]<class T>(T) {
    const T start = static_cast<T>(low), width = static_cast<T>(high - low);
    for_blocks<kEachOf<T>>(as<T>(out), count, position,
                           [=](const PhiloxBlock& block, T* to) { uniforms_of(block, start, width, to); });
  });
}

void normal(void* out, std::int64_t count, DType dtype, const random::Position& position) {
  if (dtype == kFloat64) {
    return for_blocks<2>(as<double>(out), count, position,
                         [](const PhiloxBlock& block, double* to) { normals_of(block, to); });
  }
  for_batches<4>(as<float>(out), count, position, [](const Batch& batch, std::int64_t blocks, float* to) {
    float values[4][kBatch];
    for (int w = 0; w < 4; w += 2) normals(batch.words[w], batch.words[w + 1], blocks, values[w], values[w + 1]);
    for (std::int64_t i = 0; i < blocks; ++i) {
      for (int w = 0; w < 4; ++w) to[4 * i + w] = values[w][i];
    }
  });
}

void random_bits(std::uint32_t* out, std::int64_t count, const random::Position& position) {
  for_blocks<4>(out, count, position, [](const PhiloxBlock& block, std::uint32_t* to) {
    for (int i = 0; i < 4; ++i) to[i] = block.words[i];
  });
}

void dropout_mask(void* out, std::int64_t count, DType dtype, const random::Position& position, double keep) {
  // The words below keep 2^32. If keep is 0, `kept` is 0 too.
  const auto last = static_cast<std::uint32_t>(std::max(std::ceil(keep * 0x1p32), 1.0) - 1);
  for_float(dtype, [&]<class T>(T) {
    const T kept = static_cast<T>(keep > 0 ? 1 / keep : 0);
    for_blocks<4>(as<T>(out), count, position, [=](const PhiloxBlock& block, T* to) {
      // A product: GCC 12 makes branches of a choice.
      for (int i = 0; i < 4; ++i) to[i] = static_cast<T>(block.words[i] <= last) * kept;
    });
  });
}

}  // namespace lockstep::LOCKSTEP_KERNELS
