/// \file
/// Activations as modules. The formulas are with the functions of the same names (autograd/functions.h).
#pragma once

#include <cstdint>

#include "lockstep/autograd/functions.h"
#include "lockstep/nn/module.h"

namespace lockstep::nn {

/// A function as a module.
template <Tensor (*kFunction)(const Tensor& x)>
class Activation : public Module {
 public:
  Tensor forward(const Tensor& x) const override { return kFunction(x); }
};

/// relu(x)
class ReLU : public Activation<relu> {};
/// sigmoid(x)
class Sigmoid : public Activation<sigmoid> {};
/// tanh(x)
class Tanh : public Activation<tanh> {};
/// silu(x)
class SiLU : public Activation<silu> {};
/// softplus(x, beta, threshold)
class Softplus : public Module {
 public:
  explicit Softplus(double beta = 1, double threshold = 20) : beta_(beta), threshold_(threshold) {}
  Tensor forward(const Tensor& x) const override { return softplus(x, beta_, threshold_); }

 private:
  double beta_, threshold_;
};

/// The form of GELU: exact, with erf, or the approximation with tanh (the model GPT-2 uses it).
enum class Gelu : std::uint8_t { kNone, kTanh };

struct GELUOptions {
  Gelu approximate = Gelu::kNone;  ///< kNone: gelu(x); kTanh: gelu_tanh(x)
};

/// gelu(x), or its approximation.
class GELU : public Module {
 public:
  explicit GELU(const GELUOptions& options = {}) : options_(options) {}
  Tensor forward(const Tensor& x) const override {
    return options_.approximate == Gelu::kTanh ? gelu_tanh(x) : gelu(x);
  }

 private:
  GELUOptions options_;
};

/// leaky_relu(x, slope)
class LeakyReLU : public Module {
 public:
  explicit LeakyReLU(double slope = 0.01) : slope_(slope) {}
  Tensor forward(const Tensor& x) const override { return leaky_relu(x, slope_); }

 private:
  double slope_;
};

/// softmax(x, dim): the outputs sum to 1 along `dim`.
class Softmax : public Module {
 public:
  explicit Softmax(std::int64_t dim) : dim_(dim) {}
  Tensor forward(const Tensor& x) const override { return softmax(x, dim_); }

 private:
  std::int64_t dim_;
};

/// log_softmax(x, dim), without overflow.
class LogSoftmax : public Module {
 public:
  explicit LogSoftmax(std::int64_t dim) : dim_(dim) {}
  Tensor forward(const Tensor& x) const override { return log_softmax(x, dim_); }

 private:
  std::int64_t dim_;
};

}  // namespace lockstep::nn
