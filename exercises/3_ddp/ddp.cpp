// Exercise 3: DistributedDataParallel without buckets, a hook for each parameter. See README.md beside this file.
#include "adapters.h"

namespace exercises {

// parameter->register_hook(f) calls f(gradient) in backward, when this parameter's gradient is complete; what f returns takes
// its place. The hook outlives this function: capture what it needs by value.
void average_gradients_in_backward(const std::shared_ptr<par::ProcessGroup>& group, ls::nn::Module& model) {
  not_done();
}

}  // namespace exercises
