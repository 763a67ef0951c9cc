// Conversion between f64 and every element type that NVIDIA's libraries multiply or add.
#pragma once

#include <library_types.h>

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>

namespace simulator {

inline std::size_t size_of(cudaDataType_t type) { return type == CUDA_R_64F ? 8 : type == CUDA_R_32F ? 4 : 2; }

inline double load(const void* data, cudaDataType_t type, std::int64_t i) {
  switch (type) {
    case CUDA_R_64F:
      return static_cast<const double*>(data)[i];
    case CUDA_R_16F:
      return static_cast<const _Float16*>(data)[i];
    case CUDA_R_16BF:
      return std::bit_cast<float>(std::uint32_t{static_cast<const std::uint16_t*>(data)[i]} << 16);
    default:
      return static_cast<const float*>(data)[i];
  }
}

// Rounds to nearest, ties to even.
inline std::uint16_t to_bfloat16(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  if (value != value) return static_cast<std::uint16_t>(bits >> 16 | 0x40);
  return static_cast<std::uint16_t>((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

inline void store(void* data, cudaDataType_t type, std::int64_t i, double value) {
  switch (type) {
    case CUDA_R_64F:
      static_cast<double*>(data)[i] = value;
      return;
    case CUDA_R_16F:
      static_cast<_Float16*>(data)[i] = static_cast<_Float16>(static_cast<float>(value));
      return;
    case CUDA_R_16BF:
      static_cast<std::uint16_t*>(data)[i] = to_bfloat16(static_cast<float>(value));
      return;
    default:
      static_cast<float*>(data)[i] = static_cast<float>(value);
  }
}

}  // namespace simulator
