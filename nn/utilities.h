/// \file
/// Utilities for training loops and tests.
#pragma once

#include <concepts>
#include <cstdint>
#include <optional>
#include <type_traits>
#include <utility>
#include <vector>

#include "lockstep/base/callback.h"
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

/// Constructs a module and gives it the values of `module`: the part of clone() that is not a template. Throws as clone().
void clone_into(const Module& module, FunctionRef<Module&()> make);
/// A deep copy of `module`: what `make` returns, a module or a std::unique_ptr to one, with copies of the parameters and
/// buffers, with their dtypes and devices, and with the same frozen parameters and training modes; without gradients and
/// hooks. A function has to construct the copy, because a C++ class does not know its constructor's arguments, and its
/// members refer to its own parts:
///
///     Net average = nn::clone(net, [&] { return Net(config); });
///
/// The copy's layers draw no initial values, and the generator's state is that of before. Throws InvalidArgument if the
/// copy has other modules, parameters, buffers or shapes than `module`, and if `module` is distributed over ranks.
template <class Make>
requires std::invocable<const Make&>
auto clone(const Module& module, const Make& make) {
  using Copy = std::invoke_result_t<const Make&>;
  std::optional<Copy> copy;
  clone_into(module, [&]() -> Module& {
    copy.emplace(make());
    if constexpr (std::derived_from<Copy, Module>) {
      return *copy;
    } else {
      return **copy;
    }
  });
  return std::move(*copy);
}

/// A 64-bit hash (XXH3) of dtype, shape and bytes of every parameter, then every buffer, in order. Models that are
/// equal bit for bit have equal hashes, whatever their names and devices.
std::uint64_t parameter_hash(const Module& module);
/// The same of the tensors of a state dict or a file, in the order of their names: `parameter_hash(load(path))`. The
/// order of the entries does not matter.
std::uint64_t parameter_hash(const StateDict& dict);

}  // namespace lockstep::nn
