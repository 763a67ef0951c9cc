// Reductions of the ranks' parts.
#pragma once

#include <nccl.h>

#include <array>
#include <cstddef>
#include <vector>

namespace simulator {

std::size_t bytes_of(ncclDataType_t type);  // 0: the type is not simulated

struct Reduction {
  ncclDataType_t type = ncclFloat32;
  ncclRedOp_t op = ncclSum;
  bool has_factor = false;                   // multiplies every value before the sum
  std::array<unsigned char, 8> factor = {};  // in the type of the data
};

// Reduces the consecutive parts of `ranks` ranks, in rank order.
void reduce(const Reduction& reduction, const std::vector<unsigned char>& parts, int ranks, void* out);

}  // namespace simulator
