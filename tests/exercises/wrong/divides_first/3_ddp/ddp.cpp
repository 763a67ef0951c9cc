// The mean of 1/n of each gradient: correct, but n roundings instead of one.
#include "adapters.h"

namespace exercises {

void average_gradients_in_backward(const std::shared_ptr<par::ProcessGroup>& group, ls::nn::Module& model) {
  for (const ls::nn::Parameter& parameter : model.parameters()) {
    parameter->register_hook([group](const ls::Tensor& gradient) {
      const ls::Tensor mean = gradient / group->size();
      group->all_reduce(mean)->wait();
      return mean;
    });
  }
}

}  // namespace exercises
