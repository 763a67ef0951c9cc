// Tensor parallelism with ranks that are processes: the bits of one process, in every mode.
#include "tests/parallel/model_parallel/tensor_training.h"
#include "tests/parallel/model_parallel/failing_slices.h"

using namespace tensor_training;

TEST_CASE("processes with slices have the bits of one process") {
  for (const ModelOptions& options :
       {ModelOptions{.fused = true, .gated = true, .frozen = true, .recompute = true, .dropout = 0.1},
        ModelOptions{.vocabulary = true, .tied = true, .dropout = 0.1},
        ModelOptions{.vocabulary = true, .gathers = false, .sequence = true, .dropout = 0.1}}) {
    const Outcome want = train(4, {}, options, kSteps);
    for (const Layout& layout : {Layout{.tp = 2}, Layout{.tp = 4}, Layout{.tp = 2, .dp = 2}, Layout{.tp = 4, .dp = 2},
                                 Layout{.tp = 2, .dp = 2, .stage = 1}, Layout{.tp = 2, .dp = 4, .stage = 2},
                                 Layout{.tp = 4, .dp = 2, .stage = 3}})
      with_group("shm", layout.ranks(),
                 [&](const Group& group) { check_rank(group, 4, layout, options, kSteps, want); });
  }
  const Outcome eight = train(8, {}, {.fused = true}, kSteps);
  for (const int ranks : {2, 8})
    with_group("shm", ranks,
               [&](const Group& group) { check_rank(group, 8, {.tp = ranks}, {.fused = true}, kSteps, eight); });
}

TEST_CASE("an exception on one rank ends the step of the others, which are processes") { check_failing_slices("shm"); }

TEST_CASE("a call that fails on one rank before its first layer ends those of the others, which are processes") {
  check_early_errors("shm");
}

TEST_CASE("a backward of the user's own that fails near the loss ends those of the others, which are processes") {
  check_early_backwards("shm");
}
