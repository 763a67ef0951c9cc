// Steps that an exception ends, on threads.
#include "tests/parallel/delayed/late_backend.h"
#include "tests/parallel/step/failing_rank.h"

TEST_CASE("threads: an exception in one rank's step is an error on all ranks, which names rank and exception") {
  for (const std::string backend : {"local", "sim"}) {
    CAPTURE(backend);
    for (const int ranks : {2, 3}) {
      with_threads(backend, ranks, [](const Group& group) { failing_rank::check_all(group); });
    }
  }
}

TEST_CASE("an exception in one rank's step is an error on all ranks where messages are late" *
          doctest::skip(!late_backend())) {
  for (const int ranks : {2, 3}) {
    with_threads(late_backend(), ranks, [](const Group& group) { failing_rank::check_all(group); });
  }
}
