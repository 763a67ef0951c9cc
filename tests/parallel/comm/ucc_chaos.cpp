// Random faults over ucc.
#include "tests/support/chaos_trials.h"

TEST_CASE("ucc: after any fault of a rank the others name it, keep their bits, and leave nothing behind") {
  run_trials(10, [](const Trial& trial) { check_processes_survive(trial, "ucc"); });
}
