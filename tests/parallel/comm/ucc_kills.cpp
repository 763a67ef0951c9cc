// One rank is killed or stopped at a numbered point or at a random moment, on ucc.
#include "tests/support/kill_sweeps.h"

TEST_CASE("ucc: a rank that is killed at any C library call is named by the others, and soon") {
  sweep_kill_points("ucc", 61);
}

TEST_CASE("ucc: a rank that is stopped at any C library call is named by the others after the timeout") {
  sweep_stop_points("ucc", 201);
}

TEST_CASE("ucc: a rank that is killed at a random moment is named by the others, and soon") {
  run_random_kills("ucc", 12);
}
