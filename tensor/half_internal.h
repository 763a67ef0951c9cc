// Conversions of f16 and bf16 to and from f32: round to nearest even, NaN stays NaN, overflow gives infinity.
#pragma once

#include <bit>
#include <cstdint>

#include "lockstep/tensor/dtype.h"

namespace lockstep {

[[gnu::always_inline]] constexpr float to_float(BFloat16 value) {
  return std::bit_cast<float>(static_cast<std::uint32_t>(value.bits) << 16);
}

[[gnu::always_inline]] constexpr BFloat16 to_bfloat16(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  if ((bits & 0x7fffffffu) > 0x7f800000u) return {static_cast<std::uint16_t>((bits >> 16) | 0x40u)};  // quiet NaN
  return {static_cast<std::uint16_t>((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16)};
}

[[gnu::always_inline]] constexpr float to_float(Half value) {
  const std::uint32_t sign = static_cast<std::uint32_t>(value.bits & 0x8000u) << 16;
  const std::uint32_t magnitude = value.bits & 0x7fffu;
  if (magnitude >= 0x7c00u) return std::bit_cast<float>(sign | 0x7f800000u | (magnitude & 0x3ffu) << 13);
  // Shifting the exponent field by 112 is a multiplication by 2^112, which also normalises subnormal values.
  const float scaled = std::bit_cast<float>(magnitude << 13) * 0x1p112f;
  return std::bit_cast<float>(sign | std::bit_cast<std::uint32_t>(scaled));
}

[[gnu::always_inline]] constexpr Half to_half(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  const auto sign = static_cast<std::uint16_t>((bits >> 16) & 0x8000u);
  std::uint32_t magnitude = bits & 0x7fffffffu;
  if (magnitude > 0x7f800000u) return {static_cast<std::uint16_t>(sign | 0x7e00u)};   // NaN
  if (magnitude >= 0x47800000u) return {static_cast<std::uint16_t>(sign | 0x7c00u)};  // 65536 and above
  if (magnitude < 0x38800000u) {  // below 2^-14: adding 0.5 leaves the subnormal's bits, rounded, in the mantissa
    const float shifted = std::bit_cast<float>(magnitude) + 0.5f;
    return {static_cast<std::uint16_t>(sign | (std::bit_cast<std::uint32_t>(shifted) - 0x3f000000u))};
  }
  magnitude += 0xc8000fffu + ((magnitude >> 13) & 1u);  // rebias the exponent, round to nearest even
  return {static_cast<std::uint16_t>(sign | (magnitude >> 13))};
}

}  // namespace lockstep
