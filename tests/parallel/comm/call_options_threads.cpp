// The options of calls, global ranks and attachments, on groups of threads.
#include "tests/parallel/comm/call_options.h"

#include <atomic>

using namespace call_options;

TEST_CASE("local: every operation has its name and phase in the trace and in the traffic counters") {
  ls::start_trace();
  with_group("local", 2, run_all);
  const ls::Trace trace = ls::stop_trace();
  for (const int rank : {0, 1}) check_events(trace, rank);
}

TEST_CASE("local: the time-out of every operation has its name and phase") { check_timeouts("local"); }

TEST_CASE("local: collectives of other names are an error that names both; phases may differ") {
  check_other_names("local");
}

TEST_CASE("global ranks: of the group of init_process_group, through split, duplicate and a split of a split") {
  with_threads("local", 8, [](const Group& group) {
    const int rank = group->rank();
    CHECK(global_ranks(group) == std::vector<int>{0, 1, 2, 3, 4, 5, 6, 7});
    const Group part = group->split(rank % 2, -rank);
    CHECK(global_ranks(part) == (rank % 2 == 0 ? std::vector<int>{6, 4, 2, 0} : std::vector<int>{7, 5, 3, 1}));
    CHECK(global_ranks(part->duplicate()) == global_ranks(part));
    // The first two of each group, and the last two the other way round.
    const Group half = part->split(part->rank() / 2, part->rank() < 2 ? part->rank() : -part->rank());
    const std::vector<int> halves[] = {{6, 4}, {7, 5}, {0, 2}, {1, 3}};
    CHECK(global_ranks(half) == halves[rank < 4 ? 2 + rank % 2 : rank % 2]);
    CHECK(half->global_rank(half->rank()) == rank);
    CHECK(contains(error_of([&] { half->global_rank(2); }), "global_rank: rank is 2, the group has ranks 0 to 1"));
    CHECK(contains(error_of([&] { half->global_rank(-1); }), "rank is -1"));
  });
  CHECK(global_ranks(ls::parallel::init_process_group(
            {.backend = "local", .world_size = 1, .rank = 0, .store = std::make_shared<InProcessStore>()})) ==
        std::vector<int>{0});
}

TEST_CASE("local: errors of a subgroup have the global ranks") { check_ranks_in_errors("local"); }

namespace {

struct Counter {
  ~Counter() { ++destroyed; }
  int value = 0;
  static inline std::atomic<int> destroyed{0};
};

struct Label {
  std::string text = "empty";
};

}  // namespace

TEST_CASE("attachments of two types on one group are two objects, which duplicates share and splits do not") {
  Counter::destroyed = 0;
  with_threads("local", 2, [](const Group& group) {
    group->attachment<Counter>().value = 3;
    CHECK(group->attachment<Label>().text == "empty");
    group->attachment<Label>().text = "full";
    CHECK(group->attachment<Counter>().value == 3);
    const Group second = group->duplicate(), part = group->split(0, group->rank());
    CHECK(&second->attachment<Counter>() == &group->attachment<Counter>());
    CHECK(&second->duplicate()->attachment<Label>() == &group->attachment<Label>());
    CHECK(part->attachment<Counter>().value == 0);
    CHECK(part->attachment<Label>().text == "empty");
  });
  CHECK(Counter::destroyed == 4);  // of the group and of the split, on two ranks
}
