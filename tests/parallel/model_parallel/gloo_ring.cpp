// Ring attention over gloo, with keys that are passed round the ring and with gathered keys: the bits of threads.
#include "tests/parallel/model_parallel/context_attention.h"
#include "tests/parallel/model_parallel/context_training.h"

using namespace context_training;

namespace {

constexpr int kSteps = 2;

struct Run {
  Layout layout;
  Outcome want;
};

// Every rank of one group must have the outcomes of all runs.
void check_runs(int ranks, const ModelOptions& options, const std::vector<Run>& runs) {
  with_group("gloo", ranks,
             [&](const Group& group) {
               for (const Run& run : runs) {
                 const std::string text = run.layout.describe();
                 CAPTURE(text);
                 const Outcome got = train(group, run.layout, options, kSteps);
                 CHECK(got.hash == run.want.hash);
                 CHECK(got.losses == run.want.losses);
               }
             },
             {.reduction = par::Reduction::kCanonical});
}

}  // namespace

TEST_CASE("passed and gathered keys over gloo have the bits of threads") {
  const ModelOptions options{.kv_heads = 2, .dropout = 0.1};
  std::vector<Run> of_two, of_four;
  for (const Kind kind : {Kind::kRingZigzag, Kind::kRing}) {
    const Outcome two = train_threads_apart({.cp = 2, .kind = kind}, options, kSteps),
                  four = train_threads_apart({.cp = 4, .kind = kind}, options, kSteps);
    for (const bool gather : {false, true}) {
      of_two.push_back({{2, 1, 0, kind, gather}, two});
      of_four.push_back({{4, 1, 0, kind, gather}, four});
    }
    of_four.push_back({{2, 2, 3, kind, true}, two});
  }
  check_runs(2, options, of_two);
  check_runs(4, options, of_four);
}

// Messages that no buffer holds: each rank sends and receives at the same time.
TEST_CASE("sequence blocks of several hundred kilobytes over gloo") {
  constexpr std::int64_t kPositions = LOCKSTEP_SLOWDOWN > 1 ? 1024 : 2048;
  for (const Kind kind : {Kind::kRingZigzag, Kind::kRing})
    context_attention::check_case({.ranks = 4, .kind = kind, .heads = 4, .kv_heads = 4, .time = kPositions}, "gloo");
}
