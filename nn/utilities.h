/// \file
/// Utilities for training loops and tests.
#pragma once

#include <cstdint>
#include <vector>

#include "lockstep/nn/module.h"

namespace lockstep::nn {

/// Scales the gradients in place so that their total norm is at most `max_norm`: by min(1, max_norm / (norm + 1e-6)),
/// like PyTorch. The norm is (sum |g|^p)^(1/p) over all elements with p = `norm_type`; for infinity the largest |g|.
/// Skips parameters without gradient, and counts a parameter listed twice only once. For p = 2 the squares are added in
/// f64, in an order that depends on shapes and dtypes alone (nn/gradient_norm_internal.h). Returns the norm before
/// scaling. Throws InvalidArgument for a negative or NaN `max_norm`, for a `norm_type` that is not above 0 and, with
/// `error_if_nonfinite`, for a norm that is infinite or NaN; then no gradient is changed.
double clip_grad_norm_(const std::vector<Parameter>& parameters, double max_norm, double norm_type = 2.0,
                       bool error_if_nonfinite = false);

/// Limits every element of the gradients to [-clip_value, clip_value], in place; also of the pieces that
/// ShardedDataParallel::parameters() returns. Throws InvalidArgument for a negative or NaN clip_value, and for the module's
/// own parameters of a sharded model.
void clip_grad_value_(const std::vector<Parameter>& parameters, double clip_value);

/// All elements of the parameters, one parameter after another: (total), of their common dtype and device. Has gradients.
/// Throws InvalidArgument for no parameters, and for those of a sharded model.
Tensor parameters_to_vector(const std::vector<Parameter>& parameters);
/// Copies the elements of `vector` (total) into the parameters. Throws InvalidArgument, and changes nothing, if the sizes
/// differ.
void vector_to_parameters(const Tensor& vector, const std::vector<Parameter>& parameters);

/// Stacks sequences (length, ...) of different lengths, padded at the end: (longest, batch, ...), or with `batch_first`
/// (batch, longest, ...). Throws InvalidArgument for no sequences, and for sequences that differ in other sizes.
Tensor pad_sequence(const std::vector<Tensor>& sequences, bool batch_first = false, double padding_value = 0);

/// A 64-bit hash (XXH3) of dtype, shape and bytes of every parameter, then every buffer, in order. Models that are
/// equal bit for bit have equal hashes, whatever their names and devices.
std::uint64_t parameter_hash(const Module& module);
/// The same of the tensors of a state dict or a file, in the order of their names: `parameter_hash(load(path))`. The
/// order of the entries does not matter.
std::uint64_t parameter_hash(const StateDict& dict);

}  // namespace lockstep::nn
