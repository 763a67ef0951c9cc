// Tensor parallelism over gloo has the bits of one process.
#include "tests/parallel/model_parallel/tensor_training.h"

using namespace tensor_training;

TEST_CASE("ranks with slices over gloo have the bits of one process") {
  for (const ModelOptions& options :
       {ModelOptions{.vocabulary = true, .tied = true, .dropout = 0.1},
        ModelOptions{.vocabulary = true, .gathers = false, .sequence = true, .dropout = 0.1}}) {
    const Outcome want = train(4, {}, options, kSteps);
    for (const Layout& layout : {Layout{.tp = 4}, Layout{.tp = 2, .dp = 2}, Layout{.tp = 2, .dp = 2, .stage = 3}})
      with_group("gloo", layout.ranks(),
                 [&](const Group& group) { check_rank(group, 4, layout, options, kSteps, want); },
                 {.reduction = par::Reduction::kCanonical});
  }
}
