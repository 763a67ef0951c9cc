// How much of a step's communication overlaps with backward, as reported by ranks of any backend.
#pragma once

#include <array>

#include "lockstep/autograd/history_internal.h"
#include "tests/support/groups.h"

namespace overlap_test {

// Three layers, called in the order `calls` of their registration numbers. Gradients of 64 KiB avoid the special paths
// for small ones.
struct Layers : ls::nn::Module {
  explicit Layers(std::array<int, 3> calls) : calls_(calls) {
    for (const char* name : {"0", "1", "2"}) layers_.push_back(&add<ls::nn::Linear>(name, 128, 128, kNoBias));
  }
  ls::Tensor forward(const ls::Tensor& x) const override {
    ls::Tensor out = x;
    for (const int i : calls_) out = (*layers_[static_cast<std::size_t>(i)])(out);
    return out;
  }
  ls::Tensor weight(std::size_t i) const { return layers_[i]->weight.master(); }

 private:
  static constexpr ls::nn::LinearOptions kNoBias{.bias = false};
  std::array<int, 3> calls_;
  std::vector<ls::nn::Linear*> layers_;
};

constexpr double kOneBucketEach = 1e-6, kOneBucket = 25;  // MiB

inline ls::parallel::DistributedDataParallelStats stats_of_step(const Group& group, Layers& model, double bucket_cap_mb,
                                                                int steps = 2) {
  ls::parallel::DistributedDataParallel ddp(model, group, {.bucket_cap_mb = bucket_cap_mb});
  for (int step = 0; step < steps; ++step) {
    model.zero_grad();
    mean(ddp(ls::ones({4, 128}))).backward();
  }
  return ddp.stats();
}

inline void check_none(const ls::parallel::DistributedDataParallelStats& stats, std::size_t buckets) {
  REQUIRE(stats.buckets.size() == buckets);
  CHECK(stats.overlap == 0);
  CHECK(stats.overlap_bytes == 0);
}

inline void check_overlap(const Group& group) {
  Layers in_order({0, 1, 2}), reversed({2, 1, 0});
  check_none(stats_of_step(group, in_order, kOneBucket), 1);
  // In the first step the first bucket holds the gradient that backward computes last, and buckets are launched in
  // order. From the second step on buckets are in the order in which backward computed the gradients.
  check_none(stats_of_step(group, reversed, kOneBucketEach, 1), 3);
  const auto replanned = stats_of_step(group, reversed, kOneBucketEach, 2);
  REQUIRE(replanned.buckets.size() == 3);
  CHECK(replanned.buckets[0].parameters == std::vector<std::string>{"0.weight"});
  CHECK(replanned.buckets[0].launched < replanned.buckets[2].ready);
  CHECK(replanned.steps == 2);
  CHECK(replanned.copies == 0);
  // Before the second bucket is launched, the first one is done on all ranks. With shared memory a rank works on older
  // operations while it waits: after the first barrier all ranks have launched the bucket, in the second each does the
  // rest of its work on it, and after the third no rank still works on its part.
  ls::autograd::register_leaf_hook(in_order.weight(1), [&](ls::autograd::Run&) {
    for (int i = 0; i < 3; ++i) group->barrier();
  });
  const auto stats = stats_of_step(group, in_order, kOneBucketEach);
  REQUIRE(stats.buckets.size() == 3);
  CHECK(stats.overlap_bytes < 1);
  CHECK(stats.overlap < 1);
  CHECK(stats.buckets[0].done < stats.buckets[2].ready);
  CHECK(stats.overlap_bytes >= doctest::Approx(1.0 / 3));
  CHECK(stats.overlap > 0);
}

}  // namespace overlap_test
