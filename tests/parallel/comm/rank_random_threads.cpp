// Ranks that are threads have random numbers of their own, as long as they have a group.
#include <thread>

#include "tests/support/groups.h"

namespace {

std::vector<float> numbers() { return ls::randn({4}).to_vector<float>(); }

}  // namespace

TEST_CASE("each rank draws what a process draws, whatever the others do") {
  ls::manual_seed(3);
  const std::vector<float> first = numbers(), second = numbers();
  ls::manual_seed(5);
  const std::vector<float> other = numbers();
  ls::manual_seed(3);
  with_threads("local", 4, [&](const Group& group) {
    CHECK(numbers() == first);  // a copy of the process's state
    group->barrier();
    if (group->rank() == 2) ls::manual_seed(5);
    group->barrier();
    CHECK(numbers() == (group->rank() == 2 ? other : second));
    CHECK(ls::random::seed() == (group->rank() == 2 ? 5 : 3));
    const Group part = group->split(0, group->rank());
    group->barrier();
  });
  CHECK(numbers() == first);  // the ranks have drawn from their own states
}

TEST_CASE("the threads of a rank share its state") {
  with_threads("local", 2, [](const Group& group) {
    ls::manual_seed(group->rank() == 0 ? 3 : 5);
    struct Noise : ls::nn::Module {
      ls::Tensor forward(const ls::Tensor& x) const override {
        return x + ls::randn(x.shape(), {.device = x.device()});
      }
    };
    Noise noise;
    ls::parallel::DataParallel replicas(noise, {"cpu:0", "cpu:1"});
    const ls::Tensor x = ls::zeros({4, 3});
    const ls::Tensor got = replicas(x);
    ls::manual_seed(group->rank() == 0 ? 5 : 3);
    CHECK_FALSE(ls::equal(replicas(x), got));
    ls::manual_seed(group->rank() == 0 ? 3 : 5);
    CHECK(ls::equal(replicas(x), got));
  });
}

TEST_CASE("a thread whose last group is gone draws from the process's state") {
  ls::manual_seed(3);
  const std::vector<float> first = numbers();
  const auto store = std::make_shared<ls::parallel::InProcessStore>();
  const auto join = [&](int rank) {
    return ls::parallel::init_process_group({.backend = "local", .world_size = 2, .rank = rank, .store = store});
  };
  std::thread peer([&] { join(1)->barrier(); });
  Group group = join(0);
  group->barrier();
  peer.join();
  ls::manual_seed(5);
  std::thread([&] { CHECK(ls::random::seed() == 3); }).join();
  group.reset();
  CHECK(ls::random::seed() == 3);
  ls::manual_seed(3);
  CHECK(numbers() == first);
}
