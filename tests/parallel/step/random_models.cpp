// Random models in every mode, on processes.
#include "tests/parallel/step/random_training.h"

using namespace random_case;

TEST_CASE("random models: all modes have the bits of one process, over shm") {
  for (const int ranks : {2, 3, 4})
    with_group("shm", ranks, [](const Group& group) { check_cases(group, kShmFirst, kCases); });
}

TEST_CASE("random models: all modes have the bits of one process, over gloo") {
  for (const int ranks : {2, 3, 4})
    with_group("gloo", ranks, [](const Group& group) { check_cases(group, kGlooFirst, kSlowCases); },
               {.reduction = ls::parallel::Reduction::kCanonical});
}
