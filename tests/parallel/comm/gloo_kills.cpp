// One rank is killed or stopped at a numbered point or at a random moment, on gloo.
#include "tests/support/kill_sweeps.h"

TEST_CASE("gloo: a rank that is killed at any C library call is named by the others, and soon") {
  sweep_kill_points("gloo", 61);
}

TEST_CASE("gloo: a rank that is stopped at any C library call is named by the others after the timeout") {
  sweep_stop_points("gloo", 201);
}

TEST_CASE("gloo: a rank that is killed at a random moment is named by the others, and soon") {
  run_random_kills("gloo", 12);
}
