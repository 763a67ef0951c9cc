#include "lockstep/nn/layers.h"

#include "lockstep/autograd/functions.h"
#include "lockstep/nn/fan_in_internal.h"
#include "lockstep/tensor/check_internal.h"
#include "lockstep/tensor/ops_internal.h"
#include "lockstep/tensor/random_ops_internal.h"

namespace lockstep::nn {
namespace {

Shape check_linear(std::int64_t in, std::int64_t out) {
  LOCKSTEP_CHECK(in >= 0 && out >= 0, "Linear: sizes are in {}, out {}; neither may be negative", in, out);
  return {out, in};
}

}  // namespace

// Members are initialised in order of declaration, so the weight is drawn before the bias.
Linear::Linear(std::int64_t in, std::int64_t out, const LinearOptions& options)
    : weight(add_parameter("weight", uniform_by_fan_in(check_linear(in, out), in))),
      bias(add_parameter("bias", options.bias ? uniform_by_fan_in({out}, in) : Tensor())) {}

Tensor Linear::forward(const Tensor& x) const { return linear(x, weight, bias); }

Module& Sequential::operator[](std::int64_t index) const {
  LOCKSTEP_CHECK(index >= 0 && index < size(), "Sequential: index {} is outside [0, {})", index, size());
  return *owned_children()[static_cast<std::size_t>(index)];
}

Tensor Sequential::forward(const Tensor& x) const {
  Tensor y = x;
  for (const auto& module : owned_children()) y = (*module)(y);
  return y;
}

Dropout::Dropout(double p) : p_(p) { LOCKSTEP_CHECK(p >= 0 && p <= 1, "Dropout: p is {}, expected 0 to 1", p); }

Tensor Dropout::forward(const Tensor& x) const {
  if (!is_training() || p_ == 0) return x;
  LOCKSTEP_CHECK(x.is_floating_point(), "dropout: x is {}, expected floating point", describe(x));
  return mul(x, p_ == 1 ? raw::zeros(x.shape(), x.options()) : raw::dropout_mask(x.shape(), 1 - p_, x.options()));
}

LayerNorm::LayerNorm(const Shape& shape, const LayerNormOptions& options)
    : weight(add_parameter("weight", options.affine ? raw::full(shape, 1.0) : Tensor())),
      bias(add_parameter("bias", options.affine ? raw::zeros(shape) : Tensor())), shape_(shape), eps_(options.eps) {
  LOCKSTEP_CHECK(!shape.empty(), "LayerNorm: the shape to normalise over is empty");
}

Tensor LayerNorm::forward(const Tensor& x) const { return layer_norm(x, shape_, weight, bias, eps_); }

Embedding::Embedding(std::int64_t n, std::int64_t dim)
    : weight(add_parameter("weight", raw::normal({n, dim}, random::Stream::kInit))) {}

Tensor Embedding::forward(const Tensor& index) const {
  LOCKSTEP_CHECK(index.dtype() == kInt64 || index.dtype() == kInt32, "embedding: the index is {}, expected i64 or i32",
                 describe(index));
  Shape shape = index.shape();
  shape.push_back(weight->size(1));
  const Tensor rows = index_select(weight, 0, index.reshape({-1}));  // (count, dim)
  return index.dim() == 1 ? rows : rows.reshape(shape);
}

}  // namespace lockstep::nn
