// Philox4x32-10 (Salmon et al., SC'11), with the counter and key layout of cuRAND. Included by kernels only, inside
// their namespace.
#pragma once

#include <cmath>
#include <cstdint>

#include "lockstep/tensor/kernels/level_internal.h"
#include "lockstep/tensor/random/random_draws_internal.h"

namespace lockstep::LOCKSTEP_KERNELS {

struct PhiloxBlock {
  std::uint32_t words[4];
};

// The block of the draw that is block number `block` of the part.
HOST_DEVICE inline std::uint64_t block_of_draw(const random::BlockPart& part, std::uint64_t block) {
  return part.own == 0 ? block : block / part.own * part.all + part.first + block % part.own;
}

struct WordProduct {
  HOST_DEVICE static std::uint64_t of(std::uint32_t a, std::uint32_t b) { return std::uint64_t{a} * b; }
};

// The ten rounds, from a counter to its block. A Word is a word, or a vector of one word of each of several counters.
template <class Product, class Word>
HOST_DEVICE inline void philox_rounds(Word (&c)[4], std::uint64_t seed) {
  Word k0 = Word{} + static_cast<std::uint32_t>(seed), k1 = Word{} + static_cast<std::uint32_t>(seed >> 32);
  for (int round = 0; round < 10; ++round) {
    const auto p0 = Product::of(0xD2511F53u, c[0]), p1 = Product::of(0xCD9E8D57u, c[2]);
    c[0] = static_cast<Word>(p1 >> 32) ^ c[1] ^ k0;
    c[1] = static_cast<Word>(p1);
    c[2] = static_cast<Word>(p0 >> 32) ^ c[3] ^ k1;
    c[3] = static_cast<Word>(p0);
    k0 += 0x9E3779B9u;
    k1 += 0xBB67AE85u;
  }
}

// Block number `block` of the position's part, counted from `position`: counter (offset low, high, stream low, high), key
// (seed low, high).
HOST_DEVICE inline PhiloxBlock philox(const random::Position& position, std::uint64_t block) {
  const std::uint64_t offset = position.offset + block_of_draw(position.part, block);
  PhiloxBlock out{{static_cast<std::uint32_t>(offset), static_cast<std::uint32_t>(offset >> 32),
                   static_cast<std::uint32_t>(position.stream), static_cast<std::uint32_t>(position.stream >> 32)}};
  philox_rounds<WordProduct>(out.words, position.seed);
  return out;
}

// [0, 1) with 24 bits from one word, or with 53 bits from two. Vector code converts signed numbers faster.
HOST_DEVICE inline float uniform24(std::uint32_t word) {
  return static_cast<float>(static_cast<std::int32_t>(word >> 8)) * 0x1p-24f;
}
HOST_DEVICE inline double uniform53(std::uint32_t high, std::uint32_t low) {
  return static_cast<double>(static_cast<std::int64_t>((std::uint64_t{high} << 32 | low) >> 11)) * 0x1p-53;
}

inline constexpr double kTwoPi = 6.283185307179586476925;

// Box-Muller: two normals from two uniforms, the first of them in [0, 1).
HOST_DEVICE inline void box_muller(double u, double v, double* first, double* second) {
  const double radius = std::sqrt(-2 * std::log(1 - u)), angle = kTwoPi * v;
  *first = radius * std::cos(angle);
  *second = radius * std::sin(angle);
}

// The elements of one block: 4 in f32, 2 in f64 (a uniform takes two words).
HOST_DEVICE inline void uniforms_of(const PhiloxBlock& block, float low, float width, float* out) {
  for (int i = 0; i < 4; ++i) out[i] = low + width * uniform24(block.words[i]);
}
HOST_DEVICE inline void uniforms_of(const PhiloxBlock& block, double low, double width, double* out) {
  for (int i = 0; i < 2; ++i) out[i] = low + width * uniform53(block.words[2 * i], block.words[2 * i + 1]);
}
HOST_DEVICE inline void normals_of(const PhiloxBlock& block, float* out) {
  for (int i = 0; i < 4; i += 2) {
    double first, second;
    box_muller(uniform24(block.words[i]), uniform24(block.words[i + 1]), &first, &second);
    out[i] = static_cast<float>(first);
    out[i + 1] = static_cast<float>(second);
  }
}
HOST_DEVICE inline void normals_of(const PhiloxBlock& block, double* out) {
  box_muller(uniform53(block.words[0], block.words[1]), uniform53(block.words[2], block.words[3]), &out[0], &out[1]);
}

}  // namespace lockstep::LOCKSTEP_KERNELS
