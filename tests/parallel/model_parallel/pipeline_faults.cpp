// Stages that end or stop, on processes of shm.
#include "tests/parallel/model_parallel/pipeline_faults.h"

using namespace pipeline_faults;

TEST_CASE("a stage that is killed at any row of a schedule is named by the others") {
  for (const int ranks : {2, 4}) check_faults("shm", ranks, all_ends(ranks, /*at_all=*/LOCKSTEP_SLOWDOWN == 1));
}

TEST_CASE("a stage that is killed in the first step, where there are no outboxes, is named by the others") {
  constexpr std::int64_t kWide = 32 * 1024;  // activations are larger than what a message without an outbox keeps
  std::vector<Fault> faults;
  for (const Moment moment : kMoments)
    faults.push_back({SIGKILL, 4, static_cast<int>(moment), 1, moment, /*step=*/0, kWide});
  check_faults("shm", 4, faults);
}

TEST_CASE("a stage that is stopped is named by the others after the time-out") {
  check_faults("shm", 4,
               {{SIGSTOP, 4, 0, 2, Moment::kBeforeForward},
                {SIGSTOP, 4, 1, 0, Moment::kAfterForward},
                {SIGSTOP, 4, 2, 1, Moment::kBeforeBackward},
                {SIGSTOP, 4, 3, 3, Moment::kAfterBackward}});
}
