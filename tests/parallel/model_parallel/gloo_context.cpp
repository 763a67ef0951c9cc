// Sequences in blocks over gloo: the bits of threads, and the end of a step on all ranks.
#include "tests/parallel/model_parallel/context_training.h"
#include "tests/parallel/model_parallel/failing_context.h"

using namespace context_training;

TEST_CASE("ranks of cp and dp over gloo have the bits of threads") {
  const ModelOptions options{.kv_heads = 2, .dropout = 0.1};
  for (const Kind kind : {Kind::kRingZigzag, Kind::kUlysses}) {
    const Outcome want = train_threads_apart({.cp = 2, .kind = kind}, options, 4);
    check_outcome("gloo", {2, 1, 0, kind}, options, 4, want);
    check_outcome("gloo", {2, 2, 3, kind}, options, 4, want);
  }
}

TEST_CASE("an exception on one rank ends the step on all over gloo") { check_failing_rank("gloo"); }
