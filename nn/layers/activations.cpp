// The activations that are more than one function.
#include "lockstep/nn/layers/activations.h"

#include "lockstep/base/check_internal.h"
#include "lockstep/nn/layers/layer_parts_internal.h"

namespace lockstep::nn {

Tensor GLU::forward(const Tensor& x) const {
  LOCKSTEP_CHECK(x.size(dim_) % 2 == 0, "GLU: x is {}, expected an even size along dimension {}", describe(x), dim_);
  const std::vector<Tensor> halves = chunk(x, 2, dim_);
  return halves[0] * sigmoid(halves[1]);
}

PReLU::PReLU(std::int64_t num_parameters, const PReLUOptions& options)
    : weight(add_parameter("weight", initial({num_parameters}, {.kind = Initial::kConstant, .a = options.init}))) {}

Tensor PReLU::forward(const Tensor& x) const {
  const std::int64_t n = weight->numel();
  LOCKSTEP_CHECK(n == 1 || (x.dim() >= 2 && x.size(1) == n), "PReLU: x is {}, but there are {} weights, one a channel",
                 describe(x), n);
  return where(x > 0, x, x * (n == 1 ? *weight : weight->view(channel_shape(x, n))));
}

}  // namespace lockstep::nn
