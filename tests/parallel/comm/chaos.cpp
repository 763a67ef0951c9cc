// Random faults over shm and local.
#include "tests/support/chaos_trials.h"

namespace {

void check_threads_survive(const Trial& trial) {
  with_group("local", trial.size, [&](const Group& group) {
    if (group->rank() != trial.victim) return train_until(group, trial.victim, trial.moment, [] {});
    try {
      train_until(group, trial.victim, trial.moment, [&] {
        throw std::runtime_error("the victim's own error");  // a thread can end in no other way
      });
    } catch (const std::runtime_error&) {
      // The rank leaves its group; the other ranks report that.
    }
  });
}

}  // namespace

TEST_CASE("shm: after any fault of a rank the others name it, keep their bits, and leave nothing behind") {
  run_trials(20, [](const Trial& trial) { check_processes_survive(trial, "shm"); });
}

TEST_CASE("local: after any fault of a rank the others name it, keep their bits, and leave nothing behind") {
  ls::nn::Linear warm_up(2, 2);  // creates the objects that exist once per process
  run_trials(20, check_threads_survive);
}
