// The collective suite on the shm backend: ranks are processes.
#include "tests/parallel/comm/collectives.h"
#include "tests/parallel/comm/listed_store.h"
#include "tests/parallel/comm/parts.h"
#include "tests/parallel/comm/point_to_point.h"

TEST_CASE("shm: every collective, dtype and stride, 1 to 5 ranks") {
  for (int n = 1; n <= 5; ++n) {
    with_group("shm", n, [](const Group& group) {
      for (const ls::DType dtype : kAllDTypes) {
        check_collectives(group, 1, dtype, false);
        check_collectives(group, 29, dtype, true);
      }
      for (const std::int64_t rows : {2500, 3500, 20000}) check_collectives(group, rows, ls::kFloat32, false);
    });
  }
}

TEST_CASE("shm: uneven all_to_all, products, bools") {
  for (const int n : {1, 2, 3, 5}) {
    with_group("shm", n, [](const Group& group) {
      check_uneven_and_products(group);
      check_bools(group);
    });
  }
}

TEST_CASE("shm: tensors larger than the staging memory are sent in pieces") { with_group("shm", 3, check_pieces); }

TEST_CASE("shm: random collectives of random sizes, waited for at random, give the right numbers") {
  for (const int size : {2, 3})
    with_group("shm", size,
               [](const Group& group) { check_random_collectives(group, random_collectives(100'000) / 2); });
}

TEST_CASE("shm: collectives of parts in place, apart, scaled, in communication memory and outside") {
  for (const int n : {1, 2, 3, 4, 8}) {
    with_group("shm", n, [](const Group& group) {
      check_parts(group, 1, ls::kFloat32);
      for (const ls::DType dtype : kAllDTypes) check_parts(group, 37, dtype);
      if (group->size() == 3) check_parts(group, 70'001, ls::kBFloat16);  // several tasks
      check_rounding(group);
      check_traffic_of_parts(group);
    });
  }
}

TEST_CASE("shm: ranks that gather units of other names get an error that names both") {
  with_group("shm", 2, check_other_name);
}

TEST_CASE("shm: groups and their subgroups leave no keys in the store") { check_no_keys_left("shm"); }

TEST_CASE("shm: messages between some ranks do not disturb the collectives of all ranks") {
  for (const int size : {3, 4}) with_group("shm", size, check_point_to_point);
  with_group("shm", 3, check_other_tag);
}
