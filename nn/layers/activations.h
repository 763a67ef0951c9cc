/// \file
/// Activations as modules. The formulas are with the functions of the same names (autograd/ops/functions.h).
#pragma once

#include <cstdint>

#include "lockstep/autograd/ops/functions.h"
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
/// mish(x)
class Mish : public Activation<mish> {};
/// hardswish(x)
class Hardswish : public Activation<hardswish> {};
/// log(sigmoid(x)), without overflow.
class LogSigmoid : public Module {
 public:
  Tensor forward(const Tensor& x) const override { return -softplus(-x, 1, 1e300); }
};

/// elu(x, alpha)
class ELU : public Module {
 public:
  explicit ELU(double alpha = 1) : alpha_(alpha) {}
  Tensor forward(const Tensor& x) const override { return elu(x, alpha_); }

 private:
  double alpha_;
};

/// clamp(x, min, max)
class Hardtanh : public Module {
 public:
  explicit Hardtanh(double min_val = -1, double max_val = 1) : min_(min_val), max_(max_val) {}
  Tensor forward(const Tensor& x) const override { return clamp(x, min_, max_); }

 private:
  double min_, max_;
};

/// a sigmoid(b), where a and b are the halves of x along `dim`. Throws InvalidArgument for an odd size.
class GLU : public Module {
 public:
  explicit GLU(std::int64_t dim = -1) : dim_(dim) {}
  Tensor forward(const Tensor& x) const override;

 private:
  std::int64_t dim_;
};

struct PReLUOptions {
  double init = 0.25;  ///< initial slope
};

/// x for x > 0, weight x below, with one weight for all elements, or one for each channel of x (n, channels, ...).
class PReLU : public Module {
 public:
  explicit PReLU(std::int64_t num_parameters = 1, const PReLUOptions& options = {});
  Tensor forward(const Tensor& x) const override;

  Parameter& weight;  ///< (num_parameters)
};

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
