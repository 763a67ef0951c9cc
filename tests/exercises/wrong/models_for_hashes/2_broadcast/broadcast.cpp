// The right answers, but whole models are sent.
#include "adapters.h"

namespace exercises {

void broadcast_parameters(par::ProcessGroup& group, const ls::nn::Module& model) {
  const ls::NoGradGuard no_grad;
  for (const ls::nn::Parameter& parameter : model.parameters()) group.broadcast(parameter, 0)->wait();
}

int find_odd_rank(par::ProcessGroup& group, const ls::nn::Module& model) {
  const ls::NoGradGuard no_grad;
  std::vector<ls::Tensor> flat;
  for (const ls::nn::Parameter& parameter : model.parameters())
    flat.push_back(parameter->reshape({parameter->numel()}));
  const ls::Tensor own = ls::cat(flat, 0), all = ls::zeros({group.size(), own.numel()});
  group.all_gather(all, own)->wait();
  const ls::Tensor common = ls::equal(all[0], all[1]) || ls::equal(all[0], all[2]) ? all[0] : all[1];
  for (int rank = 0; rank < group.size(); ++rank) {
    if (!ls::equal(all[rank], common)) return rank;
  }
  return -1;
}

}  // namespace exercises
