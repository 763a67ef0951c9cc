// Wrong: calls the library's all_reduce.
#include "adapters.h"

namespace exercises {

void all_reduce_by_gather(par::ProcessGroup& group, const ls::Tensor& t) { group.all_reduce(t)->wait(); }

void all_reduce_by_ring(par::ProcessGroup& group, const ls::Tensor& t) { group.all_reduce(t)->wait(); }

void all_reduce_by_halving_doubling(par::ProcessGroup& group, const ls::Tensor& t) { group.all_reduce(t)->wait(); }

}  // namespace exercises
