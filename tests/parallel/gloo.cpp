// The collective suite on the gloo backend, and what ranks see when one of them is lost.
#include "tests/parallel/collectives.h"

TEST_CASE("gloo: every collective, dtype and stride, 1 to 5 ranks") {
  for (int n = 1; n <= 5; ++n) {
    with_group("gloo", n, [](const Group& group) {
      for (const ls::DType dtype : kAllDTypes) {
        check_collectives(group, 1, dtype, false);
        check_collectives(group, 29, dtype, true);
      }
      for (const std::int64_t rows : {2500, 3500, 20000}) check_collectives(group, rows, ls::kFloat32, false);
    });
  }
}

TEST_CASE("gloo: tensors of several pieces") { with_group("gloo", 3, check_pieces); }

TEST_CASE("gloo: 10,000 random collectives of random sizes, waited for at random, leave the right numbers") {
  for (const int size : {2, 3})
    with_group("gloo", size, [](const Group& group) { check_random_collectives(group, 5000); });
}
