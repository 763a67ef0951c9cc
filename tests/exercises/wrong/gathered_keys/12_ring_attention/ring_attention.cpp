// The right values, but every rank has the keys and values of all ranks at once.
#include "adapters.h"

namespace exercises {
namespace {

// The tensors of all ranks, with a new first dimension.
ls::Tensor gather(const ls::Tensor& x, par::ProcessGroup& group) {
  const ls::Tensor own = x.unsqueeze(0), all = ls::cat(std::vector<ls::Tensor>(group.size(), own));
  group.all_gather(all, own)->wait();
  return all;
}

}  // namespace

ls::Tensor positions(int rank, int size, std::int64_t time) {
  const std::int64_t tokens = time / size;
  return ls::arange(rank * tokens, (rank + 1) * tokens);
}

ls::Tensor ring_attention(const ls::Tensor& q, const ls::Tensor& k, const ls::Tensor& v, par::ProcessGroup& group) {
  const ls::Tensor keys = gather(k, group), values = gather(v, group);
  auto [out, log_sums] = attend(q, k, v, true);
  for (int block = 0; block < group.rank(); ++block) {
    const BlockAttention next = attend(q, keys[block], values[block], false);
    const ls::Tensor above = next.log_sums - log_sums;
    out = out + ls::sigmoid(above) * (next.out - out);
    log_sums = log_sums + ls::softplus(above);
  }
  return out;
}

double mean_loss(const ls::Tensor& losses, par::ProcessGroup& group) {
  const ls::Tensor sums = ls::stack({losses.sum(), ls::full({}, losses.numel(), {.dtype = ls::kFloat64})});
  group.all_reduce(sums)->wait();
  return sums[0].item<double>() / sums[1].item<double>();
}

}  // namespace exercises
