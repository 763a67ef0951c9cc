// Training with sequences in blocks gives the same bits however many ranks share the micro-batches, in every mode. Ranks
// are threads.
#include "tests/parallel/model_parallel/context_training.h"

using namespace context_training;

namespace {

constexpr int kSteps = LOCKSTEP_SLOWDOWN > 1 ? 2 : 20, kFewSteps = LOCKSTEP_SLOWDOWN > 1 ? 2 : 6;

double worst_difference(const Outcome& a, const Outcome& b) {
  double worst = 0;
  REQUIRE(a.losses.size() == b.losses.size());
  for (std::size_t i = 0; i < a.losses.size(); ++i)
    worst = std::max(worst, std::abs(a.losses[i] - b.losses[i]) / std::abs(b.losses[i]));
  return worst;
}

}  // namespace

TEST_CASE("ranks of cp and dp, in every mode and kind of attention") {
  const ModelOptions options{.kv_heads = 4, .dropout = 0.1};
  for (const Kind kind : {Kind::kRingZigzag, Kind::kRing, Kind::kUlysses}) {
    for (const int cp : {2, 4}) {
      const Outcome want = train_threads({.cp = cp, .kind = kind}, options, kSteps);
      for (const int stage : {0, 1, 2, 3}) check_outcome("local", {cp, 1, stage, kind, true}, options, kSteps, want);
      check_outcome("local", {cp, 2, 0, kind}, options, kSteps, want);
      check_outcome("local", {cp, 2, 3, kind}, options, kSteps, want);
    }
    const Outcome want = train_threads({.cp = 2, .kind = kind}, options, kSteps);
    check_outcome("local", {2, 4, 0, kind}, options, kSteps, want);
    check_outcome("local", {2, 4, 2, kind, true}, options, kSteps, want);
  }
}

TEST_CASE("with grouped queries, recomputation, frozen parameters and bf16") {
  for (const Kind kind : {Kind::kRingZigzag, Kind::kRing, Kind::kUlysses}) {
    for (const bool recompute : {false, true}) {
      const ModelOptions options{.kv_heads = 2, .dropout = 0.1, .recompute = recompute, .frozen = true, .bf16 = true};
      const Outcome want = train_threads({.cp = 4, .kind = kind}, options, kFewSteps);
      check_outcome("local", {4, 2, 0, kind, true}, options, kFewSteps, want);
      check_outcome("local", {4, 1, 3, kind}, options, kFewSteps, want);
      ModelOptions other = options;
      other.recompute = !recompute;
      check_outcome("local", {4, 1, 0, kind}, other, kFewSteps, want);
    }
  }
}

TEST_CASE("with gradients of several steps") {
  const ModelOptions options{.dropout = 0.1, .accumulates = true};
  for (const Kind kind : {Kind::kRingZigzag, Kind::kUlysses}) {
    const Outcome want = train_threads({.cp = 2, .kind = kind}, options, 4);
    check_outcome("local", {2, 1, 2, kind}, options, 4, want);
    check_outcome("local", {2, 1, 3, kind}, options, 4, want);
  }
}

TEST_CASE("losses are those of whole sequences, up to rounding") {
  const Outcome whole = train(nullptr, {}, {}, kSteps);
  for (const Kind kind : {Kind::kRingZigzag, Kind::kRing, Kind::kUlysses}) {
    for (const int cp : {2, 4}) {
      CAPTURE(cp);
      CHECK(worst_difference(train_threads({.cp = cp, .kind = kind}, {}, kSteps), whole) < 1e-5);
    }
  }
}
