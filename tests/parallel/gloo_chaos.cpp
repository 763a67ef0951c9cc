// Faults at random over gloo.
#include "tests/support/chaos_trials.h"

TEST_CASE("gloo: whatever happens to a rank, the others name it, keep their bits, and leave nothing") {
  run_trials(10, [](const Trial& trial) { check_processes_survive(trial, "gloo"); });
}
