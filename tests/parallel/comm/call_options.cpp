// The options of calls, and global ranks, on groups of processes.
#include "tests/parallel/comm/call_options.h"

using namespace call_options;

TEST_CASE("shm: every operation has its name and phase in the trace and in the traffic counters") {
  with_group("shm", 2, [](const Group& group) {
    ls::start_trace();
    run_all(group);
    check_events(ls::stop_trace(), group->rank());
  });
}

TEST_CASE("shm: the time-out of every operation has its name and phase") { check_timeouts("shm"); }

TEST_CASE("shm: collectives of other names are an error that names both; phases may differ") {
  check_other_names("shm");
}

TEST_CASE("shm: errors of a subgroup have the global ranks") { check_ranks_in_errors("shm"); }
