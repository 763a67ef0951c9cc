// What the ranks' parts make together.
#pragma once

#include <nccl.h>

#include <array>
#include <cstddef>
#include <vector>

namespace simulator {

std::size_t bytes_of(ncclDataType_t type);  // 0: one that is not simulated

struct Reduction {
  ncclDataType_t type = ncclFloat32;
  ncclRedOp_t op = ncclSum;
  bool has_factor = false;                   // of every value, before the sum
  std::array<unsigned char, 8> factor = {};  // in the data's type
};

// The parts lie behind each other, one for each of `ranks`, and are taken in their order.
void reduce(const Reduction& reduction, const std::vector<unsigned char>& parts, int ranks, void* out);

}  // namespace simulator
