#include "tests/parallel/replicated/several_models.h"

#include "tests/parallel/comm/arrival.h"

TEST_CASE("shm: two models in one backward, launched in a different order on each rank") {
  for (const int ranks : {2, 3}) {
    for (const double cap : {25.0, 0.0001})
      with_group("shm", ranks, [&](const Group& group) { train_two_models(group, cap); });
  }
}

TEST_CASE("shm: in order of arrival a sum follows the order in which the ranks arrived") {
  with_group("shm", 4, check_orders, {.reduction = ls::parallel::Reduction::kArrival});
}

TEST_CASE("shm: with each rank's own value first the ranks' sums differ") {
  with_group("shm", 4, check_own_first, {.reduction = ls::parallel::Reduction::kOwnFirst});
}
