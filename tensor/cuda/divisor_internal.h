// Division of indices by a number that is constant in a launch. Included by kernels only, inside their namespace.
#pragma once

#include <bit>
#include <cstdint>

#include "lockstep/tensor/kernels/level_internal.h"

namespace lockstep::LOCKSTEP_KERNELS {

struct Quotient {
  std::int64_t whole, rest;
};

// A GPU has no division instruction: dividing 64 bits takes about a hundred instructions and a branch. A product
// replaces it (Granlund and Montgomery, Division by Invariant Integers using Multiplication, 1994): with
// s = ceil(log2 d) and m = floor(2^64 (2^s - d) / d) + 1, n / d is (n + floor(n m / 2^64)) >> s. For 0 <= n < 2^63.
class Divisor {
 public:
  // `d` may be 0 if nothing is divided.
  explicit Divisor(std::int64_t d = 0) : size_(d) {
    if (d <= 0) return;
    const auto size = static_cast<std::uint64_t>(d);
    shift_ = std::bit_width(size - 1);
    factor_ = static_cast<std::uint64_t>((static_cast<Wide128>((std::uint64_t{1} << shift_) - size) << 64) / size + 1);
  }
  HOST_DEVICE Quotient divide(std::int64_t n) const {
    const auto number = static_cast<std::uint64_t>(n);
    const auto whole = static_cast<std::int64_t>((number + high_of_product(number, factor_)) >> shift_);
    return {whole, n - whole * size_};
  }
  HOST_DEVICE std::int64_t size() const { return size_; }

 private:
  __extension__ typedef unsigned __int128 Wide128;  // not `using`: nvcc rejects it with __extension__

  HOST_DEVICE static std::uint64_t high_of_product(std::uint64_t a, std::uint64_t b) {
    return static_cast<std::uint64_t>(static_cast<Wide128>(a) * b >> 64);
  }

  std::int64_t size_;
  std::uint64_t factor_ = 0;
  int shift_ = 0;
};

}  // namespace lockstep::LOCKSTEP_KERNELS
