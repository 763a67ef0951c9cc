// Combines the same positions of several tensors, in canonical order: for all-reduces and data-parallel gradients.
//
// Canonical order: pairs (0,1), (2,3), ...; then pairs of pairs; an odd last input moves up one level. The order
// depends on the number of inputs alone, so any rank that combines, in any split, gets the same bits.
#pragma once

#include <cstdint>
#include <span>

#include "lockstep/base/device.h"
#include "lockstep/tensor/dtype.h"

namespace lockstep::raw {

enum class CombineOp : std::uint8_t { kSum, kMin, kMax, kProduct };
inline constexpr int kMaxCombined = 1024;  // inputs

// outputs[j][i] = scale * (inputs[0][i] + inputs[1][i] + ...); f16 and bf16 are summed in f32 and rounded once. An
// output may be one of the inputs; other overlaps are not allowed. `scale` is 1 for integers. A NaN in any input gives
// NaN.
struct Combine {
  std::span<const void* const> inputs;
  std::span<void* const> outputs;
  DType dtype = kFloat32;
  CombineOp op = CombineOp::kSum;
  double scale = 1;
  bool in_turn = false;  // one after another instead of in canonical order: ((0 + 1) + 2) + 3
};

// Combines elements [first, first + count). Throws InvalidArgument for bool, without inputs, or beyond kMaxCombined.
void combine(const Combine& combine, std::int64_t first, std::int64_t count, Device device = {});

}  // namespace lockstep::raw
