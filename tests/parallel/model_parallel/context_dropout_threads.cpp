// nn::MultiheadAttention with dropout over sequence blocks: the sequence block and the micro-batch determine the masks.
// Ranks are threads.
#include "tests/parallel/model_parallel/context_training.h"

using namespace context_training;

namespace {

constexpr int kSteps = LOCKSTEP_SLOWDOWN > 1 ? 1 : 4;

}  // namespace

TEST_CASE("MultiheadAttention with dropout draws the same masks on every mesh, and recomputation repeats them") {
  for (const Kind kind : {Kind::kRingZigzag, Kind::kRing, Kind::kUlysses}) {
    for (const int cp : {2, 4}) {
      const ModelOptions options{.dropout = 0.2, .multihead = true, .padded = cp == 2};
      ModelOptions recomputed = options;
      recomputed.recompute = true;
      const Outcome want = train_threads({.cp = cp, .kind = kind}, options, kSteps);
      check_outcome("local", {cp, 2, 0, kind}, options, kSteps, want);
      check_outcome("local", {cp, 1, 3, kind, true}, options, kSteps, want);
      check_outcome("local", {cp, 1, 0, kind}, recomputed, kSteps, want);
      check_outcome("local", {cp, 2, 3, kind, true}, recomputed, kSteps, want);
      if (cp == 2) check_outcome("local", {cp, 4, 1, kind}, options, kSteps, want);
    }
  }
}

TEST_CASE("MultiheadAttention over sequence blocks draws masks in training only") {
  with_threads("local", 2, [](const Group& group) {
    for (const Kind kind : {Kind::kRingZigzag, Kind::kRing, Kind::kUlysses}) {
      ls::manual_seed(3);
      MultiheadSelfAttention net({.dropout = 0.5, .multihead = true});
      const ls::Tensor x = ls::randn({1, kTime, kWidth});
      par::context_parallel(net, par::DeviceMesh(group, {{"cp", 2}}), {.attention = kind});
      const ls::Tensor mine = x.narrow(1, group->rank() * kTime / 2, kTime / 2);
      net.eval();
      const ls::Tensor first = net(mine).detach();
      CHECK(same_bits(net(mine).detach(), first));
      net.train();
      CHECK(!same_bits(net(mine).detach(), first));
    }
  });
}
