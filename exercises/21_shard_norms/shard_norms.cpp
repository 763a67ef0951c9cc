// Exercise 21: norms of tensors whose elements are on several ranks. See README.md in this folder.
#include "adapters.h"

namespace exercises {

double clip_shard(const ls::Tensor& gradient, double max_norm, par::ProcessGroup& group) { not_done(); }

void lars_step(const ls::Tensor& parameters, const ls::Tensor& gradient, const std::vector<std::int64_t>& sizes,
               double rate, par::ProcessGroup& group) {
  not_done();
}

}  // namespace exercises
