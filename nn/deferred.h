/// \file
/// Deferred initialisation: a model's parameters have only shapes, until materialize() gives them storage and values.
///
///     nn::DeferredInit deferred;
///     Net net;                              // needs no memory for parameters
///     deferred.end();
///     nn::materialize(net, "cuda:0");       // the values that Net would have had without DeferredInit
///
/// A deferred parameter is on the device "deferred". Computing with it is an error that names this header.
#pragma once

#include <cstdint>

#include "lockstep/nn/module.h"
#include "lockstep/tensor/tensor_part.h"

namespace lockstep::nn {

/// While it exists, or until end(), layers that the calling thread constructs have deferred parameters, and the
/// functions of nn/init.h set how a deferred parameter will be initialised. Buffers, and parameters that a module makes
/// from its own tensors (`add_parameter("w", randn({2, 3}))`), have values as usual.
class DeferredInit {
 public:
  DeferredInit();
  explicit DeferredInit(std::uint64_t seed);  ///< calls manual_seed(seed) first
  ~DeferredInit();
  DeferredInit(const DeferredInit&) = delete;
  DeferredInit& operator=(const DeferredInit&) = delete;
  void end();  ///< restores the mode from before this object: unless nested, later layers have values

 private:
  bool outer_;
  bool ended_ = false;
};

/// Whether the parameter has a shape, but no storage.
bool is_deferred(const Tensor& parameter);
/// Gives the deferred parameters of the module and of all modules below it storage on `device`, and their initial
/// values. Moves nothing else. Handles, optimizers and hooks stay valid.
void materialize(Module& module, Device device = {});
/// Returns the initial values of a part of a deferred parameter, in shape (part.numel). Throws InvalidArgument if the
/// parameter is not deferred or the part exceeds the parameter.
Tensor initial_values(const Tensor& parameter, const TensorPart& part, Device device = {});
/// The same for the elements [first, first + count).
Tensor initial_values(const Tensor& parameter, std::int64_t first, std::int64_t count, Device device = {});

}  // namespace lockstep::nn
