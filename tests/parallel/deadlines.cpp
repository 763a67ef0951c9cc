// When the time is over, for a process that works, waits, or is stopped for a while.
#include <doctest/doctest.h>
#include <unistd.h>

#include "lockstep/parallel/deadline.h"

namespace par = lockstep::parallel;
using std::chrono::hours;
using std::chrono::milliseconds;

TEST_CASE("a pause between two looks moves the deadline; a wait that had a deadline of its own does not") {
  par::Deadline paused(milliseconds(1000)), waited(milliseconds(1000));
  usleep(1'300'000);  // what a stopped process does
  waited.waited(hours(1));
  CHECK(waited.passed());
  CHECK(waited.left() == milliseconds(0));
  CHECK(waited.slice() == milliseconds(1));
  CHECK_FALSE(paused.passed());
  CHECK(paused.left() > milliseconds(0));
}
