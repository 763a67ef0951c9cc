// The right bits, but every rank sends its whole gradient to all others.
#include "adapters.h"

namespace exercises {

void average_gradients_in_backward(const std::shared_ptr<par::ProcessGroup>& group, ls::nn::Module& model) {
  for (const ls::nn::Parameter& parameter : model.parameters()) {
    parameter->register_hook([group](const ls::Tensor& gradient) {
      const ls::Tensor all = ls::zeros({group->size() * gradient.numel()});
      group->all_gather(all, gradient.reshape({gradient.numel()}))->wait();
      std::vector<ls::Tensor> rows = ls::chunk(all, group->size(), 0);
      while (rows.size() > 1) {  // pairs of neighbours, then pairs of pairs
        std::vector<ls::Tensor> sums;
        for (std::size_t r = 0; r < rows.size(); r += 2)
          sums.push_back(r + 1 < rows.size() ? rows[r] + rows[r + 1] : rows[r]);
        rows = sums;
      }
      return (rows[0] * (1.0 / group->size())).reshape(gradient.shape());
    });
  }
}

}  // namespace exercises
