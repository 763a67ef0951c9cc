// Runs in different modes are recorded and compared: equal ones are equal, and every change of one bit is named.
#include "tests/parallel/step/record_cases.h"

namespace {

// Checks that lockstep-diff names the fault of a run of this layout.
void check_named(const Layout& layout, const Fault& fault, const diff::Comparison& comparison) {
  using Kind = Fault::Kind;
  INFO(layout.name, ", kind ", static_cast<int>(fault.kind), ", ", fault.name, ", step ", fault.step, ", micro-batch ",
       fault.micro_batch, ", rank ", fault.rank, ", element ", fault.element);
  REQUIRE(comparison.first);
  const diff::Difference& first = *comparison.first;
  INFO("found: ", diff::describe(first.key));
  const diff::What what = fault.kind == Kind::kForward     ? diff::What::kOutput
                          : fault.kind == Kind::kBackward  ? diff::What::kInputGradient
                          : fault.kind == Kind::kReduction ? diff::What::kGradient
                                                           : diff::What::kParameter;
  CHECK(first.key.what == what);
  CHECK(first.key.step == fault.step);
  // The gradient of act's output is that of drop's input.
  CHECK(first.key.name == (fault.kind == Kind::kBackward ? fault.name.substr(0, 9) + "drop" : fault.name));
  CHECK(first.key.micro_batch == (what <= diff::What::kInputGradient ? fault.micro_batch : -1));
  CHECK(first.element == fault.element);
  CHECK(first.differing == 1);
  const int ranks = layout.ranks;
  if (what <= diff::What::kInputGradient) CHECK(first.b.rank == fault.micro_batch * ranks / kMicroBatches);
  const bool drifts = what == diff::What::kParameter && layout.stage == 0;
  CHECK(first.within == (drifts ? "faulty_" + layout.name : ""));
  if (drifts) CHECK((fault.rank == 0 ? first.ranks_a : first.ranks_b)[0] == fault.rank);
  if (fault.kind == Kind::kForward || fault.kind == Kind::kOptimizer)
    CHECK(std::popcount(first.a.bits ^ first.b.bits) == 1);
}

std::vector<Fault> random_faults(const Layout& layout, std::mt19937& random) {
  const auto below = [&](int n) { return static_cast<int>(random() % static_cast<unsigned>(n)); };
  std::vector<Fault> faults;
  const auto add = [&](Fault::Kind kind, const std::string& name, std::int64_t elements) {
    faults.push_back({.kind = kind,
                      .name = name,
                      .step = below(kSteps),
                      .micro_batch = below(kMicroBatches),
                      .rank = below(layout.ranks),
                      .element = below(static_cast<int>(elements))});
  };
  const std::string block = "blocks." + std::to_string(below(2));
  add(Fault::Kind::kForward, block + ".fc", 6 * kWidth);
  add(Fault::Kind::kForward, block, 6 * kWidth);
  add(Fault::Kind::kForward, "head", 6 * 2);
  add(Fault::Kind::kBackward, block + ".act", 6 * kWidth);
  add(Fault::Kind::kOptimizer, block + ".fc.weight", kWidth * kWidth);
  add(Fault::Kind::kOptimizer, "head.bias", 2);
  if (layout.stage == 0) add(Fault::Kind::kReduction, "in.weight", 3 * kWidth);
  return faults;
}

}  // namespace

TEST_CASE("runs of all modes are equal, tensor by tensor, and recording changes no bits") {
  for (const bool recomputes : {false, true}) {
    const std::uint64_t hash = record(kLayouts[0], "", {}, {.recomputes = recomputes});
    for (const Layout& layout : kLayouts) {
      CAPTURE(layout.name);
      CHECK(record(layout, layout.name, {}, {.recomputes = recomputes}) == hash);
    }
    for (std::size_t i = 0; i < kLayouts.size(); ++i) {
      for (std::size_t j = 0; j < i; ++j) {
        CAPTURE(kLayouts[i].name);
        CAPTURE(kLayouts[j].name);
        const diff::Comparison comparison = compare(kLayouts[i].name, kLayouts[j].name);
        if (comparison.first) FAIL_CHECK(diff::describe(comparison.first->key));
        CHECK(comparison.steps == kSteps);
        CHECK(comparison.only_a + comparison.only_b == 0);
        // In a step the outputs of 14 modules and the input, gradients of 14 parameters and, of inputs, of at least 11.
        CHECK(comparison.equal > kSteps * kMicroBatches * (15 + 14 + 9) + kSteps * (2 * 14 + 2));
      }
    }
  }
}

TEST_CASE("a change of one bit is named: step, micro-batch, module, tensor, element and rank") {
  record(kLayouts[0], "reference");
  std::mt19937 random(3);
  for (const Layout& layout : kLayouts) {
    for (const Fault& fault : random_faults(layout, random)) {
      const std::string directory = "faulty_" + layout.name;
      record(layout, directory, fault);
      check_named(layout, fault, compare("reference", directory));
    }
  }
}
