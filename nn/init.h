/// \file
/// Initialises parameters in place. Random values are a function of the seed, the number of the initialisation since
/// manual_seed, and the element (tensor/random/random.h).
///
/// fan_in is the number of inputs of one output, fan_out the number of outputs of one input. For a weight (out, in)
/// they are `in` and `out`; the sizes of further dimensions multiply both. Functions that use them throw
/// InvalidArgument for fewer than two dimensions. All functions return their argument.
#pragma once

#include <cstdint>

#include "lockstep/tensor/tensor.h"

namespace lockstep::nn::init {

const Tensor& zeros_(const Tensor& x);                                         ///< all 0
const Tensor& ones_(const Tensor& x);                                          ///< all 1
const Tensor& constant_(const Tensor& x, double value);                        ///< all `value`
const Tensor& uniform_(const Tensor& x, double low = 0.0, double high = 1.0);  ///< U(low, high)
const Tensor& normal_(const Tensor& x, double mean = 0.0, double std = 1.0);   ///< N(mean, std^2)

/// N(mean, std^2) given that the value lies in [a, b]. Throws InvalidArgument unless a < b, std > 0, and the interval has
/// a positive probability in f64.
const Tensor& trunc_normal_(const Tensor& x, double mean = 0.0, double std = 1.0, double a = -2.0, double b = 2.0);

/// U(-b, b) with b = gain sqrt(6 / (fan_in + fan_out)), or N(0, gain^2 2 / (fan_in + fan_out)). (Glorot and Bengio, 2010)
const Tensor& xavier_uniform_(const Tensor& x, double gain = 1.0);
const Tensor& xavier_normal_(const Tensor& x, double gain = 1.0);  ///< the normal distribution

/// Preserves the variance of activations in forward (kFanIn), or of gradients in backward (kFanOut).
enum class FanMode : std::uint8_t { kFanIn, kFanOut };

/// The function that follows a layer. kLinear stands for none, and for convolutions.
enum class Nonlinearity : std::uint8_t { kLinear, kSigmoid, kTanh, kReLU, kLeakyReLU, kSELU };

/// PyTorch's gain for a nonlinearity: 1 for kLinear and kSigmoid, 5/3 for kTanh, sqrt(2) for kReLU, 3/4 for kSELU,
/// sqrt(2 / (1 + param^2)) for kLeakyReLU.
double calculate_gain(Nonlinearity nonlinearity, double param = 0.01);

struct KaimingOptions {
  double a = 0.0;                                        ///< negative slope, for kLeakyReLU; 0 is ReLU
  FanMode mode = FanMode::kFanIn;                        ///< fan in the formula
  Nonlinearity nonlinearity = Nonlinearity::kLeakyReLU;  ///< determines the gain
};

/// With std = calculate_gain(nonlinearity, a) / sqrt(fan): U(-sqrt(3) std, sqrt(3) std), or N(0, std^2). (He et al.,
/// 2015)
const Tensor& kaiming_uniform_(const Tensor& x, const KaimingOptions& options = {});
const Tensor& kaiming_normal_(const Tensor& x, const KaimingOptions& options = {});  ///< the normal distribution

/// A random matrix with orthonormal columns, or rows if it has fewer rows than columns, times gain: the Q of a QR
/// decomposition of N(0, 1), with the signs of R's diagonal. Further dimensions count as columns. Throws InvalidArgument
/// for fewer than two dimensions. Each call for a part of a deferred parameter computes the whole matrix. (Saxe et al., 2013)
const Tensor& orthogonal_(const Tensor& x, double gain = 1.0);

}  // namespace lockstep::nn::init
