// Combining the same positions of several tensors, in canonical order: what all-reduces and data-parallel gradients are
// made of.
//
// Canonical order: pairs (0,1), (2,3), ...; then pairs of pairs; an odd last one passes up. It depends on the number of
// inputs alone, so whoever combines, in whatever pieces, gets the same bits.
#pragma once

#include <cstdint>
#include <span>

#include "lockstep/tensor/device.h"
#include "lockstep/tensor/dtype.h"

namespace lockstep::raw {

enum class CombineOp : std::uint8_t { kSum, kMin, kMax, kProduct };
inline constexpr int kMaxCombined = 1024;  // inputs

// outputs[j][i] = scale * (inputs[0][i] + inputs[1][i] + ...), f16 and bf16 in f32 and rounded once. An output may be one
// of the inputs; other overlaps may not be. `scale` is 1 for integers. A NaN anywhere gives NaN.
struct Combine {
  std::span<const void* const> inputs;
  std::span<void* const> outputs;
  DType dtype = kFloat32;
  CombineOp op = CombineOp::kSum;
  double scale = 1;
  bool in_turn = false;  // not in canonical order: ((0 + 1) + 2) + 3
};

// Combines elements [first, first + count). Throws InvalidArgument for bool, without inputs, or beyond kMaxCombined.
void combine(const Combine& combine, std::int64_t first, std::int64_t count, Device device = {});

}  // namespace lockstep::raw
