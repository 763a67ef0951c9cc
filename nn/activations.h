/// \file
/// Activations as modules. The formulas are with the functions of the same names (autograd/functions.h).
#pragma once

#include <cstdint>

#include "lockstep/autograd/functions.h"
#include "lockstep/nn/module.h"

namespace lockstep::nn {

/// relu(x)
class ReLU : public Module {
 public:
  Tensor forward(const Tensor& x) const override { return relu(x); }
};

/// sigmoid(x)
class Sigmoid : public Module {
 public:
  Tensor forward(const Tensor& x) const override { return sigmoid(x); }
};

/// tanh(x)
class Tanh : public Module {
 public:
  Tensor forward(const Tensor& x) const override { return tanh(x); }
};

/// the exact form, with erf
class GELU : public Module {
 public:
  Tensor forward(const Tensor& x) const override { return gelu(x); }
};

/// silu(x)
class SiLU : public Module {
 public:
  Tensor forward(const Tensor& x) const override { return silu(x); }
};

/// leaky_relu(x, slope)
class LeakyReLU : public Module {
 public:
  explicit LeakyReLU(double slope = 0.01) : slope_(slope) {}
  Tensor forward(const Tensor& x) const override { return leaky_relu(x, slope_); }

 private:
  double slope_;
};

/// softplus(x)
class Softplus : public Module {
 public:
  Tensor forward(const Tensor& x) const override { return softplus(x); }
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
