// Steps that an exception ends, on processes.
#include "tests/parallel/step/failing_rank.h"

TEST_CASE("an exception in one rank's step is an error on all ranks, which names rank and exception") {
  for (const std::string backend : {"shm", "gloo"}) {
    CAPTURE(backend);
    for (const int ranks : {2, 3}) {
      if (LOCKSTEP_SLOWDOWN > 1 && backend == "gloo" && ranks == 2) continue;  // the error takes no other path
      with_group(backend, ranks, [](const Group& group) { failing_rank::check_all(group); });
    }
  }
}
