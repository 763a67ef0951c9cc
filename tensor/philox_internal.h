// Philox4x32-10 (Salmon et al., SC'11), with the counter and key layout of cuRAND. Included by kernels only, inside
// their namespace.
#pragma once

#include <cstdint>

#include "lockstep/tensor/random.h"

#ifndef HOST_DEVICE
#define HOST_DEVICE
#endif

namespace lockstep::inline LOCKSTEP_ABI::LOCKSTEP_KERNELS {

struct PhiloxBlock {
  std::uint32_t words[4];
};

// Block number `block` counted from `position`: counter (offset low, high, stream low, high), key (seed low, high).
HOST_DEVICE inline PhiloxBlock philox(const random::Position& position, std::uint64_t block) {
  const std::uint64_t offset = position.offset + block;
  std::uint32_t c0 = static_cast<std::uint32_t>(offset), c1 = static_cast<std::uint32_t>(offset >> 32);
  std::uint32_t c2 = static_cast<std::uint32_t>(position.stream),
                c3 = static_cast<std::uint32_t>(position.stream >> 32);
  std::uint32_t k0 = static_cast<std::uint32_t>(position.seed), k1 = static_cast<std::uint32_t>(position.seed >> 32);
  for (int round = 0; round < 10; ++round) {
    const std::uint64_t p0 = std::uint64_t{0xD2511F53u} * c0, p1 = std::uint64_t{0xCD9E8D57u} * c2;
    c0 = static_cast<std::uint32_t>(p1 >> 32) ^ c1 ^ k0;
    c1 = static_cast<std::uint32_t>(p1);
    c2 = static_cast<std::uint32_t>(p0 >> 32) ^ c3 ^ k1;
    c3 = static_cast<std::uint32_t>(p0);
    k0 += 0x9E3779B9u;
    k1 += 0xBB67AE85u;
  }
  return {{c0, c1, c2, c3}};
}

// [0, 1) with 24 bits from one word, or with 53 bits from two.
HOST_DEVICE inline float uniform24(std::uint32_t word) { return static_cast<float>(word >> 8) * 0x1p-24f; }
HOST_DEVICE inline double uniform53(std::uint32_t high, std::uint32_t low) {
  return static_cast<double>((std::uint64_t{high} << 32 | low) >> 11) * 0x1p-53;
}

}  // namespace lockstep::inline LOCKSTEP_ABI::LOCKSTEP_KERNELS
