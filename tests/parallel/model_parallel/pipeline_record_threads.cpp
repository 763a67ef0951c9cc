// Records of pipelines are equal to that of gradient accumulation, and a change of one bit in a stage is named. Ranks are
// threads.
#include <fmt/format.h>

#include "tests/parallel/step/record_cases.h"

namespace {

struct Stages {
  int ranks = 2, chunks = 1;
  par::Schedule schedule = par::Schedule::k1F1B;
  std::string directory() const { return fmt::format("stages_{}_{}_{}", ranks, chunks, par::name(schedule)); }
};

// The chain of Net, which these layouts cut into 2, 3, 5 and 4 stages.
const std::vector<std::string> kChain = {"in", "blocks.*", "norm", "head"};
const std::vector<Stages> kStages = {
    {2}, {3, 1, par::Schedule::kGPipe}, {5}, {2, 2, par::Schedule::kInterleaved}, {1, 3, par::Schedule::kInterleaved}};

void train_on_rank(const Group& group, const Stages& stages, const std::string& directory, const Fault& fault,
                   const Variant& variant) {
  Net model(variant.recomputes);
  int step = 0;
  install(model, fault, step);
  par::Pipeline run(model, par::DeviceMesh(group, {{"pp", stages.ranks}}),
                    {.chain = kChain,
                     .schedule = stages.schedule,
                     .micro_batches_per_rank = kMicroBatches,
                     .chunks_per_rank = stages.chunks});
  train(run, directory, fault, step);
}

void record_in_stages(const Stages& stages, const Fault& fault = {}, const Variant& variant = {}) {
  const std::string directory = stages.directory();
  std::filesystem::remove_all(directory);
  ls::manual_seed(1);
  if (stages.ranks == 1)
    train_on_rank(nullptr, stages, directory, fault, variant);
  else
    with_group("local", stages.ranks,
               [&](const Group& group) { train_on_rank(group, stages, directory, fault, variant); });
}

// Checks that lockstep-diff names the fault.
void check_named_in(const Stages& stages, const Fault& fault, diff::What what, const std::string& name) {
  CAPTURE(stages.directory());
  CAPTURE(name);
  record_in_stages(stages, fault);
  const diff::Comparison comparison = compare("of_one", stages.directory());
  REQUIRE(comparison.first);
  const diff::Difference& first = *comparison.first;
  INFO("found: ", diff::describe(first.key));
  CHECK(first.key.what == what);
  CHECK(first.key.name == name);
  CHECK(first.key.step == fault.step);
  CHECK(first.key.micro_batch == (what == diff::What::kParameter ? -1 : fault.micro_batch));
  CHECK(first.element == fault.element);
  CHECK(first.differing == 1);
}

}  // namespace

TEST_CASE("records of pipelines are equal to that of gradient accumulation, tensor by tensor") {
  for (const bool recomputes : {false, true}) {
    const Variant variant{.recomputes = recomputes};
    record(kLayouts[0], "of_one", {}, variant);
    for (const Stages& stages : kStages) {
      CAPTURE(stages.directory());
      record_in_stages(stages, {}, variant);
      for (int rank = 0; rank < stages.ranks; ++rank)
        CHECK(std::filesystem::exists(fmt::format("{}/rank{}.jsonl", stages.directory(), rank)));
      const diff::Comparison comparison = compare("of_one", stages.directory());
      if (comparison.first) FAIL_CHECK(diff::describe(comparison.first->key), ": ", comparison.first->what_differs);
      INFO(comparison.example);
      CHECK(comparison.only_a == 0);
      CHECK(comparison.only_b == 0);
      CHECK(comparison.steps == kSteps);
      CHECK(comparison.equal > kSteps * kMicroBatches * (15 + 14 + 9) + kSteps * (2 * 14 + 2));
    }
  }
}

TEST_CASE("a change of one bit in a stage is named: step, micro-batch, module and element") {
  using Kind = Fault::Kind;
  record(kLayouts[0], "of_one");
  std::mt19937 random(5);
  const auto below = [&](int n) { return static_cast<int>(random() % static_cast<unsigned>(n)); };
  for (const Stages& stages : kStages) {
    const auto fault = [&](Kind kind, const std::string& name, int elements) {
      return Fault{.kind = kind,
                   .name = name,
                   .step = below(kSteps),
                   .micro_batch = below(kMicroBatches),
                   .element = below(elements)};
    };
    const std::string block = fmt::format("blocks.{}", below(2));
    check_named_in(stages, fault(Kind::kForward, "in", 6 * kWidth), diff::What::kOutput, "in");
    check_named_in(stages, fault(Kind::kForward, block, 6 * kWidth), diff::What::kOutput, block);
    check_named_in(stages, fault(Kind::kForward, "head", 6 * 2), diff::What::kOutput, "head");
    // The gradient of act's output is that of drop's input.
    check_named_in(stages, fault(Kind::kBackward, block + ".act", 6 * kWidth), diff::What::kInputGradient,
                   block + ".drop");
    check_named_in(stages, fault(Kind::kOptimizer, "head.bias", 2), diff::What::kParameter, "head.bias");
    check_named_in(stages, fault(Kind::kOptimizer, block + ".fc.weight", kWidth * kWidth), diff::What::kParameter,
                   block + ".fc.weight");
  }
}

TEST_CASE("LOCKSTEP_RECORD records all ranks of a pipeline in one directory, the second run in another") {
  std::filesystem::remove_all("stages_by_environment");
  setenv("LOCKSTEP_RECORD", "stages_by_environment", 1);
  for (int i = 0; i < 2; ++i) {
    ls::manual_seed(1);
    with_group("local", 3, [&](const Group& group) { train_on_rank(group, {3}, "", {}, {}); });
  }
  unsetenv("LOCKSTEP_RECORD");
  for (const std::string directory : {"stages_by_environment", "stages_by_environment/2"}) {
    for (int rank = 0; rank < 3; ++rank)
      CHECK(std::filesystem::exists(fmt::format("{}/rank{}.jsonl", directory, rank)));
  }
  CHECK(compare("stages_by_environment", "stages_by_environment/2").is_equal());
}
