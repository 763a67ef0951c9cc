// The sum instead of the mean: the same bytes, another learning rate.
#include "adapters.h"

namespace exercises {

void average_gradients_in_backward(const std::shared_ptr<par::ProcessGroup>& group, ls::nn::Module& model) {
  for (const ls::nn::Parameter& parameter : model.parameters()) {
    parameter->register_hook([group](const ls::Tensor& gradient) {
      const ls::Tensor sum = gradient.clone();
      group->all_reduce(sum)->wait();
      return sum;
    });
  }
}

}  // namespace exercises
