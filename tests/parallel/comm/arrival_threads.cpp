#include "tests/parallel/comm/arrival.h"

using ls::parallel::ReduceOp;
using ls::parallel::Reduction;

TEST_CASE("in order of arrival a sum follows the order in which the ranks arrived, the same on all ranks") {
  with_group("local", 4, check_orders, {.reduction = Reduction::kArrival});
  CHECK(sum_in_turn<float>({0, 1, 2, 3}) != sum_in_turn<float>({0, 2, 1, 3}));
}

TEST_CASE("with each rank's own value first the ranks' sums differ, except those of integers") {
  with_group("local", 4, check_own_first, {.reduction = Reduction::kOwnFirst});
  CHECK(sum_own_first<float>(0) == sum_own_first<float>(1));  // a + b is b + a
  CHECK(sum_own_first<float>(0) != sum_own_first<float>(2));
}

TEST_CASE("in canonical order a sum does not depend on the order of arrival") {
  with_group("local", 4, [](const Group& group) {
    const Group messages = group->split(0, group->rank());
    std::vector<int> order = {0, 1, 2, 3};
    do {
      const ls::Tensor t = ls::full({5}, kValues[static_cast<std::size_t>(group->rank())]);
      start_in_order(group, messages, order, [&] { return group->all_reduce(t); })->wait();
      CHECK(t.max().item<float>() == (1e8f + 1) + (-1e8f + 1));
    } while (std::ranges::next_permutation(order).found);
  });
}

TEST_CASE("in order of arrival f16 is added in f32, and other operations are unaffected") {
  with_group("local", 3,
             [](const Group& group) {
               const ls::Tensor half = ls::full({4}, group->rank() == 0 ? 2048 : 1, {.dtype = ls::kFloat16});
               group->all_reduce(half)->wait();
               CHECK(half.to(ls::kFloat32).max().item<float>() == 2050);
               const ls::Tensor numbers = ls::full({4}, group->rank(), {.dtype = ls::kInt64}),
                                product = ls::full({4}, group->rank() + 2.0);
               group->all_reduce(numbers)->wait();
               group->all_reduce(product, ReduceOp::kProduct)->wait();
               CHECK(numbers.max().item<int>() == 3);
               CHECK(product.max().item<float>() == 24);
               for (int i = 0; i < 200; ++i) {  // slots are reused
                 const ls::Tensor t = ls::full({3}, 1.0 * group->rank() + i);
                 group->all_reduce(t)->wait();
                 CHECK(t.max().item<float>() == 3 + 3 * i);
               }
             },
             {.reduction = Reduction::kArrival});
}

TEST_CASE("with each rank's own value first f16 is added in f32, and two ranks have the same sum") {
  with_group("local", 3,
             [](const Group& group) {
               const ls::Tensor half = ls::full({4}, group->rank() == 0 ? 2048 : 1, {.dtype = ls::kFloat16});
               group->all_reduce(half)->wait();
               CHECK(half.to(ls::kFloat32).max().item<float>() == 2050);
             },
             {.reduction = Reduction::kOwnFirst});
  with_group("local", 2,
             [](const Group& group) {
               const ls::Tensor t = ls::full({5000}, group->rank() == 0 ? 1e8 : 1);
               group->all_reduce(t)->wait();
               CHECK(t.max().item<float>() == 1e8f + 1);
             },
             {.reduction = Reduction::kOwnFirst});
}

TEST_CASE("reduction orders for teaching need the backend local or shm") {
  const auto refused = [](ls::parallel::InitOptions options) {
    options.world_size = 1;
    options.rank = 0;
    options.store = std::make_shared<ls::parallel::InProcessStore>();
    options.reduction = Reduction::kOwnFirst;
    return error_of<ls::InvalidArgument>([&] { ls::parallel::init_process_group(options); });
  };
  CHECK(contains(refused({.backend = "gloo"}), "own value first are for the backends local and shm"));
  CHECK(contains(refused({.backend = "sim"}), "own value first are for the backends local and shm"));
}

TEST_CASE("ranks with different reduction orders get an error that names both orders") {
  const auto store = std::make_shared<ls::parallel::InProcessStore>();
  run_threads(3, [&](int rank) {
    const Group group =
        ls::parallel::init_process_group({.backend = "local",
                                          .world_size = 3,
                                          .rank = rank,
                                          .store = store,
                                          .reduction = rank == 1 ? Reduction::kArrival : Reduction::kCanonical});
    const std::string error = error_of<ls::CommError>([&] { group->all_reduce(ls::zeros({3}))->wait(); });
    CHECK_MESSAGE(contains(error, "ranks disagree"), error);
    CHECK_MESSAGE(contains(error, "in order of arrival"), error);
  });
}
