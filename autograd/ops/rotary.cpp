// Rotary position embedding, composed of public operations.
#include "lockstep/autograd/ops/creation.h"
#include "lockstep/autograd/ops/operations_internal.h"
#include "lockstep/base/check_internal.h"
#include "lockstep/tensor/half_dtypes_internal.h"

namespace lockstep {

Tensor rotary_embedding(const Tensor& x, const RotaryOptions& options) {
  require_defined("rotary_embedding", x);
  LOCKSTEP_CHECK(x.dim() >= 2 && x.size(-1) % 2 == 0 && x.is_floating_point(),
                 "rotary_embedding: x is {}, expected floating point, (..., time, dim) with an even dim", describe(x));
  LOCKSTEP_CHECK(options.base > 0, "rotary_embedding: base is {}, expected a positive number", options.base);
  if (is_half(x.dtype())) return rotary_embedding(x.to(kFloat32), options).to(x.dtype());
  return named("rotary_embedding", [&] {
    const std::int64_t pairs = x.size(-1) / 2, end = 2 * pairs;
    const TensorOptions f64 = {.dtype = kFloat64,
                               .device = x.device()};  // an angle in f32 is off by 1e-4 after 2000 positions
    const Tensor positions = arange(options.first, options.first + x.size(-2), f64).unsqueeze(1);
    const Tensor angles = mul(positions, pow(options.base, div(arange(pairs, f64), -static_cast<double>(pairs))));
    const Tensor c = cos(angles).to(x.dtype()), s = sin(angles).to(x.dtype());
    const Tensor a = options.interleaved ? x.slice(-1, 0, end, 2) : x.slice(-1, 0, pairs);
    const Tensor b = options.interleaved ? x.slice(-1, 1, end, 2) : x.slice(-1, pairs, end);
    const Tensor u = sub(mul(a, c), mul(b, s)), v = add(mul(b, c), mul(a, s));
    return options.interleaved ? stack({u, v}, -1).flatten(-2) : cat({u, v}, -1);
  });
}

}  // namespace lockstep
