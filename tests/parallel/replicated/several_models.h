// Several DistributedDataParallel models on one group, whose buckets are launched in a different order on each rank.
#pragma once

#include "tests/support/groups.h"

struct PartlyUsed : ls::nn::Module {
  ls::nn::Linear& first = add<ls::nn::Linear>("first", 4, 8);
  ls::nn::Linear& second = add<ls::nn::Linear>("second", 4, 8);
  ls::nn::Linear& head = add<ls::nn::Linear>("head", 8, 4);
  ls::nn::Buffer& calls = add_buffer("calls", ls::zeros({1}));
  explicit PartlyUsed(std::uint32_t salt) {
    const ls::NoGradGuard no_grad;
    for (const ls::nn::Parameter& p : parameters()) p->copy_(numbers(p->shape(), {}, ++salt));
  }
  ls::Tensor forward(const ls::Tensor& x) const override { return use(x, true, true); }
  // Uses only a part of the parameters.
  ls::Tensor use(const ls::Tensor& x, bool with_first, bool with_second) const {
    ls::Tensor hidden = ls::zeros({x.size(0), 8});
    if (with_first) hidden = hidden + first(x);
    if (with_second) hidden = hidden + second(x);
    return head(ls::relu(hidden));
  }
};

inline ls::Tensor mean_square(const ls::Tensor& x) { return ls::mean(x * x); }
inline ls::Tensor inputs(int rank) { return numbers({6, 4}, {}, 50u + static_cast<std::uint32_t>(rank)); }

// The loss of rank `rank`: parts of the models, in an order that depends on the rank. The engine runs the newest
// operation first, so buckets are launched in the reverse order of the forwards.
inline ls::Tensor loss_of(const PartlyUsed& a, const PartlyUsed& b, int rank) {
  const ls::Tensor x = inputs(rank);
  const auto of_a = [&] { return mean_square(a.use(x, rank != 0, rank != 1)); };
  const auto of_b = [&] { return mean_square(b.use(x, rank != 1, rank != 2)); };
  ls::Tensor left, right;
  if (rank % 2 == 0) {
    left = of_a();
    right = of_b();
  } else {
    right = of_b();
    left = of_a();
  }
  return left + right;
}

inline void check_mean(const PartlyUsed& model, const PartlyUsed& a, const PartlyUsed& b, bool is_a, int ranks) {
  PartlyUsed alone_a(0), alone_b(0);
  const auto copy = [](const PartlyUsed& from, PartlyUsed& to) {
    const ls::NoGradGuard no_grad;
    for (std::size_t i = 0; i < to.parameters().size(); ++i) to.parameters()[i]->copy_(*from.parameters()[i]);
  };
  copy(a, alone_a);
  copy(b, alone_b);
  for (int r = 0; r < ranks; ++r) loss_of(alone_a, alone_b, r).backward();
  const auto have = model.named_parameters(), want = (is_a ? alone_a : alone_b).named_parameters();
  for (std::size_t i = 0; i < have.size(); ++i)
    check_close(have[i].second->grad(), want[i].second->grad() / ranks, have[i].first, {1e-5, 1e-6});
}

// Runs 20 steps through both models, and compares the first model's gradients with those of all ranks in one process.
inline void train_two_models(const Group& group, double bucket_cap_mb) {
  PartlyUsed a(0), b(10);
  ls::parallel::DistributedDataParallel first(a, group, {.bucket_cap_mb = bucket_cap_mb}),
      second(b, group, {.bucket_cap_mb = bucket_cap_mb});
  for (int step = 0; step < 20; ++step) {
    a.zero_grad();
    b.zero_grad();
    loss_of(a, b, group->rank()).backward();
    if (step > 0) continue;
    check_mean(a, a, b, true, group->size());
    check_mean(b, a, b, false, group->size());
  }
  CHECK(first.stats().steps == 20);
  CHECK(second.stats().steps == 20);
}
