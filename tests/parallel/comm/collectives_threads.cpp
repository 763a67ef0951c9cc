// The collective suite on the local backend: ranks are threads.
#include "tests/parallel/comm/collectives.h"

TEST_CASE("local: every collective, dtype and stride, 1 to 5 ranks") {
  for (int n = 1; n <= 5; ++n) {
    with_group("local", n, [](const Group& group) {
      for (const ls::DType dtype : kAllDTypes) {
        check_collectives(group, 1, dtype, false);
        check_collectives(group, 29, dtype, true);
      }
      for (const std::int64_t rows : {2500, 3500, 20000}) check_collectives(group, rows, ls::kFloat32, false);
    });
  }
}

TEST_CASE("local: roots are rank 0 unless given, and mean averages numbers of all ranks") {
  with_group("local", 3, [](const Group& group) {
    const int rank = group->rank();
    const ls::Tensor b = given_tensor(rank, {4}, ls::kFloat32);
    group->broadcast(b)->wait();
    expect_same(b, given_tensor(0, {4}, ls::kFloat32), "broadcast");
    const ls::Tensor sum = given_tensor(rank, {4}, ls::kFloat32);
    group->reduce(sum)->wait();
    if (rank == 0) expect_same(sum, combined(3, {4}, ls::kFloat32, ls::parallel::ReduceOp::kSum), "reduce");
    std::vector<ls::Tensor> parts;
    if (rank == 0) parts = {ls::zeros({4}), ls::zeros({4}), ls::zeros({4})};
    group->gather(parts, given_tensor(rank, {4}, ls::kFloat32))->wait();
    const ls::Tensor own = ls::zeros({4});
    group->scatter(own, parts)->wait();
    expect_same(own, given_tensor(rank, {4}, ls::kFloat32), "gather and scatter");
    CHECK(group->mean(rank * 1.5) == 1.5);
  });
}

TEST_CASE("local: uneven all_to_all, products, bools") {
  for (const int n : {1, 2, 3, 5}) {
    with_group("local", n, [](const Group& group) {
      check_uneven_and_products(group);
      check_bools(group);
    });
  }
}

TEST_CASE("local: tensors larger than the staging memory are sent in pieces") { with_group("local", 3, check_pieces); }

TEST_CASE("local: random collectives of random sizes, waited for at random, give the right numbers") {
  for (const int size : {2, 3})
    with_group("local", size,
               [](const Group& group) { check_random_collectives(group, random_collectives(10'000) / 2); });
}
