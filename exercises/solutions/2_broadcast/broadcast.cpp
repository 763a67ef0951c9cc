#include "adapters.h"

namespace exercises {

void broadcast_parameters(par::ProcessGroup& group, const ls::nn::Module& model) {
  const ls::NoGradGuard no_grad;
  std::vector<std::shared_ptr<par::Work>> works;
  for (const ls::nn::Parameter& parameter : model.parameters()) works.push_back(group.broadcast(parameter, 0));
  for (const auto& work : works) work->wait();
}

int find_odd_rank(par::ProcessGroup& group, const ls::nn::Module& model) {
  const ls::Tensor own = ls::empty({1}, {.dtype = ls::kInt64}), all = ls::empty({group.size()}, {.dtype = ls::kInt64});
  own.span<std::int64_t>()[0] = static_cast<std::int64_t>(ls::nn::parameter_hash(model));
  group.all_gather(all, own)->wait();
  const auto hashes = all.span<std::int64_t>();
  // At most one rank differs, so two of the first three ranks have the common hash.
  const std::int64_t common = hashes[0] == hashes[1] || hashes[0] == hashes[2] ? hashes[0] : hashes[1];
  for (int rank = 0; rank < group.size(); ++rank) {
    if (hashes[static_cast<std::size_t>(rank)] != common) return rank;
  }
  return -1;
}

}  // namespace exercises
