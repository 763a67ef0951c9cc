/// \file
/// Utilities for training loops and tests.
#pragma once

#include <cstdint>
#include <vector>

#include "lockstep/nn/module.h"

namespace lockstep::nn {

/// Scales the gradients in place so that their total Euclidean norm is at most `max_norm`: by
/// min(1, max_norm / (norm + 1e-6)), like PyTorch. Skips parameters without gradient. Returns the norm before scaling.
/// Throws InvalidArgument for a negative or NaN `max_norm`.
double clip_grad_norm_(const std::vector<Parameter>& parameters, double max_norm);

/// A 64-bit hash (XXH3) of dtype, shape and bytes of every parameter, then every buffer, in order. Models that are
/// equal bit for bit have equal hashes, whatever their names and devices.
std::uint64_t parameter_hash(const Module& module);

}  // namespace lockstep::nn
