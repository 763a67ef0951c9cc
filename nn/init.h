// Initialisation of parameters, in place, from the initialisation stream (random::Stream::kInit).
//
// fan_in is the number of inputs that one output sees, fan_out the reverse: for a weight (out, in) they are `in` and
// `out`; for more dimensions both are multiplied by the sizes after the second. Functions that need them throw
// InvalidArgument for fewer than two dimensions. All return their argument.
#pragma once

#include <cstdint>

#include "lockstep/tensor/tensor.h"

namespace lockstep::nn::init {

const Tensor& zeros_(const Tensor& x);                                         // all 0
const Tensor& ones_(const Tensor& x);                                          // all 1
const Tensor& constant_(const Tensor& x, double value);                        // all `value`
const Tensor& uniform_(const Tensor& x, double low = 0.0, double high = 1.0);  // U(low, high)
const Tensor& normal_(const Tensor& x, double mean = 0.0, double std = 1.0);   // N(mean, std^2)

// U(-b, b) with b = gain sqrt(6 / (fan_in + fan_out)), or N(0, gain^2 2 / (fan_in + fan_out)). (Glorot and Bengio, 2010)
const Tensor& xavier_uniform_(const Tensor& x, double gain = 1.0);
const Tensor& xavier_normal_(const Tensor& x, double gain = 1.0);  // the normal form

// Which side's number of connections keeps its scale: inputs (forward) or outputs (backward).
enum class FanMode : std::uint8_t { kFanIn, kFanOut };

struct KaimingOptions {
  double a = 0.0;                  // slope of the leaky ReLU that follows; 0 for ReLU
  FanMode mode = FanMode::kFanIn;  // whose scale is kept
};

// With std = sqrt(2 / (1 + a^2) / fan): U(-sqrt(3) std, sqrt(3) std), or N(0, std^2). (He et al., 2015)
const Tensor& kaiming_uniform_(const Tensor& x, const KaimingOptions& options = {});
const Tensor& kaiming_normal_(const Tensor& x, const KaimingOptions& options = {});  // the normal form

}  // namespace lockstep::nn::init
