// The same bits with ranks that are processes: those of threads (context_training_threads.cpp), in every mode.
#include "tests/parallel/model_parallel/context_training.h"
#include "tests/parallel/model_parallel/context_attention.h"
#include "tests/parallel/model_parallel/failing_context.h"

using namespace context_training;

TEST_CASE("processes of cp and dp have the bits of threads") {
  const ModelOptions options{.kv_heads = 2, .dropout = 0.1, .recompute = true};
  for (const Kind kind : {Kind::kRingZigzag, Kind::kRing, Kind::kUlysses}) {
    const Outcome want = train_threads_apart({.cp = 4, .kind = kind}, options, 8);
    for (const int stage : {0, 1, 2, 3}) check_outcome("shm", {4, 1, stage, kind}, options, 8, want);
    check_outcome("shm", {4, 2, 0, kind}, options, 8, want);
    check_outcome("shm", {4, 2, 3, kind, true}, options, 8, want);
    const Outcome two = train_threads_apart({.cp = 2, .kind = kind}, options, 8);
    check_outcome("shm", {2, 4, 3, kind}, options, 8, two);
    check_outcome("shm", {2, 1, 0, kind, true}, options, 8, two);
  }
}

TEST_CASE("an exception on one rank ends the step on all, which are processes") { check_failing_rank("shm"); }

// Messages that no buffer holds: each rank sends and receives at the same time.
TEST_CASE("sequence blocks of several hundred kilobytes") {
  for (const context_attention::Kind kind : context_attention::kKinds) {
    for (const int ranks : {2, 4})
      context_attention::check_case({.ranks = ranks, .kind = kind, .heads = 4, .kv_heads = 4, .time = 2048}, "shm");
  }
}
