// What training loops and tests need around modules.
#pragma once

#include <cstdint>
#include <vector>

#include "lockstep/nn/module.h"

namespace lockstep::nn {

// Scales the gradients in place so that their Euclidean norm, taken over all of them together, is at most `max_norm`:
// by min(1, max_norm / (norm + 1e-6)), as PyTorch. Parameters without gradient are skipped. Returns the norm before.
// Throws InvalidArgument for a negative or NaN `max_norm`.
double clip_grad_norm_(const std::vector<Parameter>& parameters, double max_norm);

// A 64-bit hash (XXH3) of dtype, shape and bytes of every parameter, then every buffer, in order: equal for models that
// are the same bit for bit, whatever their names and devices.
std::uint64_t parameter_hash(const Module& module);

}  // namespace lockstep::nn
