// Ulysses: attention on all positions and some of the heads. Not installed.
#pragma once

#include <memory>

#include "lockstep/autograd/ops/functions.h"
#include "lockstep/parallel/comm/process_group.h"

namespace lockstep::parallel {

// scaled_dot_product_attention of this rank's queries (..., heads, time, dim) to the keys of all ranks: an all_to_all
// exchanges sequence blocks for heads, before and after. (Jacobs et al., 2023)
Tensor ulysses_attention(const std::shared_ptr<ProcessGroup>& group, const Tensor& q, const Tensor& k, const Tensor& v,
                         AttentionOptions options);

}  // namespace lockstep::parallel
