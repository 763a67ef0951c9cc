// Incremental 64-bit XXH3. Not installed.
#pragma once

#include <xxhash.h>

#include <cstddef>
#include <cstdint>
#include <span>

#include "lockstep/tensor/tensor.h"

namespace lockstep::nn {

class Hash {
 public:
  Hash() { XXH3_64bits_reset(&state_); }
  void update(std::span<const std::byte> bytes) {
    if (!bytes.empty()) XXH3_64bits_update(&state_, bytes.data(), bytes.size());
  }
  std::uint64_t digest() const { return XXH3_64bits_digest(&state_); }

 private:
  XXH3_state_t state_;
};

// The memory of a contiguous tensor on the CPU.
inline std::span<std::byte> bytes_of(const Tensor& tensor) {
  return {static_cast<std::byte*>(tensor.raw_data()),
          static_cast<std::size_t>(tensor.numel()) * item_size(tensor.dtype())};
}

}  // namespace lockstep::nn
