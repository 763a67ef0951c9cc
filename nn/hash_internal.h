// Incremental 64-bit XXH3. Not installed.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "lockstep/tensor/tensor.h"

namespace lockstep::nn {

class Hash {
 public:
  Hash();
  ~Hash();
  Hash(const Hash&) = delete;
  Hash& operator=(const Hash&) = delete;

  void update(std::span<const std::byte> bytes);
  std::uint64_t digest() const;

 private:
  void* state_;
};

// The memory of a contiguous tensor on the CPU.
inline std::span<std::byte> bytes_of(const Tensor& tensor) {
  return {static_cast<std::byte*>(tensor.raw_data()),
          static_cast<std::size_t>(tensor.numel()) * item_size(tensor.dtype())};
}

}  // namespace lockstep::nn
