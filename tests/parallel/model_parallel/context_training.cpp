// The same bits with ranks that are processes: those of threads (context_training_threads.cpp), in every mode.
#include "tests/parallel/model_parallel/context_training.h"
#include "tests/parallel/model_parallel/context_attention.h"
#include "tests/parallel/model_parallel/failing_context.h"

using namespace context_training;

namespace {
constexpr int kSteps = LOCKSTEP_SLOWDOWN > 1 ? 2 : 8;
}

TEST_CASE("processes of cp and dp have the bits of threads") {
  const ModelOptions options{.kv_heads = 2, .dropout = 0.1, .recompute = true};
  for (const Kind kind : {Kind::kRingZigzag, Kind::kRing, Kind::kUlysses}) {
    const Outcome want = train_threads_apart({.cp = 4, .kind = kind}, options, kSteps);
    for (const int stage : {0, 1, 2, 3}) check_outcome("shm", {4, 1, stage, kind}, options, kSteps, want);
    check_outcome("shm", {4, 2, 0, kind}, options, kSteps, want);
    check_outcome("shm", {4, 2, 3, kind, true}, options, kSteps, want);
    const Outcome two = train_threads_apart({.cp = 2, .kind = kind}, options, kSteps);
    check_outcome("shm", {2, 4, 3, kind}, options, kSteps, two);
    check_outcome("shm", {2, 1, 0, kind, true}, options, kSteps, two);
  }
}

TEST_CASE("an exception on one rank ends the step on all, which are processes") { check_failing_rank("shm"); }

// Messages that no buffer holds: each rank sends and receives at the same time.
TEST_CASE("sequence blocks of several hundred kilobytes") {
  constexpr std::int64_t kPositions = LOCKSTEP_SLOWDOWN > 1 ? 1024 : 2048;
  for (const context_attention::Kind kind : context_attention::kKinds) {
    for (const int ranks : {2, 4})
      context_attention::check_case({.ranks = ranks, .kind = kind, .heads = 4, .kv_heads = 4, .time = kPositions},
                                    "shm");
  }
}
