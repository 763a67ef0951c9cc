#include "lockstep/tensor/ops/combine_internal.h"

#include "lockstep/base/check_internal.h"
#include "lockstep/tensor/kernels/kernels_internal.h"

namespace lockstep::raw {

void combine(const Combine& combine, std::int64_t first, std::int64_t count, Device device) {
  LOCKSTEP_CHECK(combine.dtype != kBool || combine.op != CombineOp::kSum,
                 "combine: bool cannot be added; use to(kUInt8)");
  LOCKSTEP_CHECK(!combine.inputs.empty() && combine.inputs.size() <= kMaxCombined,
                 "combine: {} inputs, expected 1 to {}", combine.inputs.size(), kMaxCombined);
  LOCKSTEP_CHECK(combine.scale == 1 || is_floating_point(combine.dtype), "combine: {} cannot be scaled by {}",
                 name(combine.dtype), combine.scale);
  kernels(device).combine(combine, first, count);
}

}  // namespace lockstep::raw
