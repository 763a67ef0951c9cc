// Every rank adds the bias before the all-reduce.
#include "adapters.h"

namespace exercises {

ls::Tensor columns_of_rank(const ls::Tensor& qkv, std::int64_t heads, int rank, int size) {
  const std::int64_t width = qkv.size(1) / 3, dim = width / heads, own = heads / size * dim;
  std::vector<ls::Tensor> parts;
  for (std::int64_t part = 0; part < 3; ++part) parts.push_back(qkv.narrow(1, part * width + rank * own, own));
  return ls::cat(parts, 1);
}

ls::Tensor mlp_forward(const ls::Tensor& x, const MlpSlices& mlp, par::ProcessGroup& group) {
  const ls::Tensor y = ls::matmul(ls::relu(ls::matmul(x, mlp.up) + mlp.up_bias), mlp.down) + mlp.down_bias;
  group.all_reduce(y)->wait();
  return y;
}

MlpGradients mlp_backward(const ls::Tensor& grad, const ls::Tensor& x, const MlpSlices& mlp, par::ProcessGroup& group) {
  const ls::Tensor before = ls::matmul(x, mlp.up) + mlp.up_bias, hidden = ls::relu(before);
  const ls::Tensor of_hidden = ls::where(before > 0, ls::matmul(grad, mlp.down.transpose(0, 1)), 0.0);
  const ls::Tensor of_x = ls::matmul(of_hidden, mlp.up.transpose(0, 1));
  group.all_reduce(of_x)->wait();
  return {.x = of_x,
          .up = ls::matmul(x.transpose(0, 1), of_hidden),
          .up_bias = of_hidden.sum({0}),
          .down = ls::matmul(hidden.transpose(0, 1), grad),
          .down_bias = grad.sum({0})};
}

ls::Tensor sum_over_slices(const std::vector<ls::Tensor>& terms, par::ProcessGroup& group) {
  std::vector<ls::Tensor> sums = terms;
  while (sums.size() > 1) {
    std::vector<ls::Tensor> pairs;
    for (std::size_t i = 0; i < sums.size(); i += 2) pairs.push_back(sums[i] + sums[i + 1]);
    sums = pairs;
  }
  const ls::Tensor sum = sums[0].clone();
  group.all_reduce(sum)->wait();
  return sum;
}

}  // namespace exercises
