// One rank is killed at named places, at any of them, on gloo.
#include "tests/support/kill_sweeps.h"

TEST_CASE("gloo: whichever call of the system a rank dies at, the others name it, and soon") {
  sweep_kill_points("gloo", 61);
}

TEST_CASE("gloo: whichever call of the system a rank is stopped at, the others name it when the time is over") {
  sweep_stop_points("gloo", 201);
}

TEST_CASE("gloo: at whatever moment a rank dies, the others name it, and soon") { run_random_kills("gloo", 12); }
