// nn::MultiheadAttention with dropout and padding over sequence blocks, with ranks that are processes.
#include "tests/parallel/model_parallel/context_training.h"

using namespace context_training;

TEST_CASE("MultiheadAttention with dropout and padding has the bits of threads") {
  constexpr int kSteps = 3;
  for (const Kind kind : {Kind::kRingZigzag, Kind::kRing, Kind::kUlysses}) {
    ModelOptions options{.dropout = 0.2, .multihead = true, .padded = true};
    const Outcome want = train_threads_apart({.cp = 2, .kind = kind}, options, kSteps);
    check_outcome("shm", {2, 1, 0, kind}, options, kSteps, want);
    check_outcome("shm", {2, 2, 3, kind, true}, options, kSteps, want);
    options.recompute = true;
    check_outcome("shm", {2, 2, 0, kind}, options, kSteps, want);
  }
}
