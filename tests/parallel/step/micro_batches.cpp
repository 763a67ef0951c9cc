// Forward and backward of micro-batches may run apart, in the order of a pipeline's schedule.
#include "lockstep/parallel/step/micro_batch_loop_internal.h"
#include "tests/support/testing.h"

namespace {

namespace par = ls::parallel;

struct Net : ls::nn::Module {
  ls::nn::Linear& fc = add<ls::nn::Linear>("fc", 3, 6);
  ls::nn::BatchNorm1d& norm = add<ls::nn::BatchNorm1d>("norm", 6);
  ls::nn::Dropout& dropout = add<ls::nn::Dropout>("dropout", 0.3);
  ls::Tensor forward(const ls::Tensor& x) const override { return dropout(norm(fc(x))); }
};

// Names the calls.
struct Recorder final : par::MicroBatchObserver {
  void begin_forward(const par::MicroBatchPass& /*pass*/) override { text += "F"; }
  void end_forward() override { text += "f"; }
  void begin_backward(const par::MicroBatchPass& /*pass*/, par::BackwardPart /*part*/) override { text += "B"; }
  void end_backward() override { text += "b"; }
  void end_step() override { text += "."; }
  std::string text;
};

struct Result {
  std::vector<ls::Tensor> gradients, buffers, losses;
  std::string calls;
};

// A step of four micro-batches. `ahead`: forwards that run before the first backward.
Result run(int ahead) {
  ls::manual_seed(3);
  Net model;
  const par::Batch batch = {numbers({8, 3}, {}, 1)};
  const par::MicroBatchPlan plan{.op = "test", .samples = 8, .micro_batches = 4};
  par::GradientSets sets(model.parameters());
  par::MicroBatchBuffers buffers(model);
  Result result;
  Recorder recorder;
  const auto loss_fn = [&](const par::Batch& x) { return ls::mean(model(x[0]) * x[0].sum()); };
  const auto before_last = [&] { recorder.text += "!"; };
  {
    par::InTurn in_turn(sets, buffers, 0, recorder, before_last);
    par::MicroBatchStep step(plan, batch, loss_fn, in_turn, result.losses);
    in_turn.begin(4);
    std::vector<ls::Tensor> waiting;
    for (int s = 0; s < 4; ++s) {
      waiting.push_back(step.forward(s));
      if (s >= ahead - 1) step.backward(s - ahead + 1, waiting[static_cast<std::size_t>(s - ahead + 1)]);
    }
    for (int s = 5 - ahead; s < 4; ++s) step.backward(s, waiting[static_cast<std::size_t>(s)]);
  }
  for (std::size_t p = 0; p < model.parameters().size(); ++p) result.gradients.push_back(sets.finish(p).clone());
  for (const ls::nn::Buffer& b : model.buffers()) result.buffers.push_back(b->clone());
  result.calls = recorder.text;
  return result;
}

void check_same(const std::vector<ls::Tensor>& a, const std::vector<ls::Tensor>& b) {
  REQUIRE(a.size() == b.size());
  for (std::size_t i = 0; i < a.size(); ++i) CHECK(same_bits(a[i], b[i]));
}

}  // namespace

TEST_CASE("forwards of micro-batches that run ahead of their backwards give the same bits") {
  const Result want = run(1);
  CHECK(want.calls == "FfBbFfBbFfBbFf!Bb.");
  CHECK(run(2).calls == "FfFfBbFfBbFfBb!Bb.");
  CHECK(run(4).calls == "FfFfFfFfBbBbBb!Bb.");
  for (const int ahead : {2, 3, 4}) {
    CAPTURE(ahead);
    const Result got = run(ahead);
    check_same(got.gradients, want.gradients);
    check_same(got.buffers, want.buffers);
    check_same(got.losses, want.losses);
  }
}

TEST_CASE("a micro-batch without samples makes the same calls") {
  Net model;
  par::MicroBatchesInTurn in_turn(model);
  Recorder recorder;
  std::vector<ls::Tensor> losses;
  const par::Batch batch = {numbers({2, 3}, {}, 1)};
  const par::MicroBatchPlan plan{.op = "test", .samples = 2, .micro_batches = 3};
  in_turn.run(
      plan, 0, batch, [&](const par::Batch& x) { return ls::sum(model.fc(x[0])); }, losses, recorder, [] {});
  CHECK(recorder.text == "FfBbFfBbFfBb.");
  CHECK(losses.size() == 2);
}

TEST_CASE("an exception in a forward ends the step") {
  Net model;
  par::MicroBatchesInTurn in_turn(model);
  Recorder recorder;
  std::vector<ls::Tensor> losses;
  const par::Batch batch = {numbers({4, 3}, {}, 1)};
  const par::MicroBatchPlan plan{.op = "test", .samples = 4, .micro_batches = 2};
  CHECK_THROWS_AS(
      in_turn.run(
          plan, 0, batch, [](const par::Batch&) -> ls::Tensor { throw ls::Error("no"); }, losses, recorder, [] {}),
      ls::Error);
  CHECK(recorder.text == "F.");
}
