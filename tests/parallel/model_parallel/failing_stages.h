// An exception in a stage of a pipeline, while the others wait for its messages: all ranks get it, and the group has failed.
#pragma once

#include <functional>
#include <stdexcept>
#include <string>
#include <vector>

#include <fmt/format.h>

#include "tests/support/groups.h"

namespace failing_stages {

namespace par = ls::parallel;
namespace nn = ls::nn;

enum class Place { kLoss, kForward, kBackward, kEvaluation };

constexpr const char* kText = "no more input";
const std::vector<std::string> kChain = {"first", "second", "third", "last"};

[[noreturn]] inline void throw_error() { throw std::runtime_error(kText); }

struct Stage : nn::Module {
  nn::Linear& linear = add<nn::Linear>("linear", 8, 8);
  std::function<void(const ls::Tensor&)> after = [](const ls::Tensor&) {};
  ls::Tensor forward(const ls::Tensor& x) const override {
    const ls::Tensor y = ls::tanh(linear(x));
    after(y);
    return y;
  }
};

struct Stages : nn::Module {
  Stage& first = add<Stage>("first");
  Stage& second = add<Stage>("second");
  Stage& third = add<Stage>("third");
  Stage& last = add<Stage>("last");
  ls::Tensor forward(const ls::Tensor& x) const override { return last(third(second(first(x)))); }
};

// Returns the text of the error of step(); "": none.
inline std::string error_in(const std::function<void()>& step) {
  try {
    step();
  } catch (const std::exception& error) {
    return error.what();
  }
  return "";
}

// The exception is thrown in the second micro-batch of the third step, when outboxes are in use. Returns whether all
// is as it should be.
inline bool check_failing_step(const Group& group, Place place) {
  const int ranks = group->size();  // 2 to 4
  const par::DeviceMesh mesh(group, {{"pp", ranks}});
  Stages model;
  par::Pipeline run(model, mesh["pp"], {.chain = kChain, .micro_batches_per_rank = 4});
  const ls::Tensor x = ls::ones({8, 8});
  int calls = 0;  // of the third module, or of the loss function
  bool fails = false;
  const auto is_now = [&] { return fails && ++calls == 2; };
  if (place == Place::kForward)
    model.third.after = [&](const ls::Tensor&) {
      if (is_now()) throw_error();
    };
  if (place == Place::kBackward)
    model.third.after = [&](const ls::Tensor& y) {
      if (is_now()) y.register_hook([](const ls::Tensor&) -> ls::Tensor { throw_error(); });
    };
  const auto loss = [&](const ls::Tensor& in, const ls::Tensor& target) {
    const ls::Tensor y = model(in);
    if ((place == Place::kLoss || place == Place::kEvaluation) && is_now()) throw_error();
    return nn::mse_loss(y, target);
  };
  const auto step = [&] { place == Place::kEvaluation ? run.evaluate(x, x, loss) : run.backward(x, x, loss); };
  step();
  step();
  fails = true;
  const int culprit = place == Place::kForward || place == Place::kBackward ? ranks / 2 : ranks - 1;
  const std::string text = error_in(step);
  CAPTURE(static_cast<int>(place));
  CHECK_MESSAGE(contains(text, kText), text);
  if (group->rank() != culprit) {
    CHECK_MESSAGE(contains(text, fmt::format("rank {} has failed: Pipeline: ", culprit)), text);
    CHECK_MESSAGE(contains(text, fmt::format("micro-batch 1 in stage {} (rank {}, row ", culprit, culprit)), text);
  }
  fails = false;
  const std::string next = error_in(step);
  CHECK_MESSAGE(contains(next, kText), next);
  CHECK_MESSAGE(contains(next, "failed"), next);
  return contains(text, kText) && contains(next, kText);
}

inline void check_failing_stages(const std::string& backend) {
  for (const Place place : {Place::kLoss, Place::kForward, Place::kBackward, Place::kEvaluation})
    with_group(backend, 3, [&](const Group& group) { check_failing_step(group, place); });
}

// Errors that all ranks find before the schedule begins leave the group usable.
inline void check_error_before_the_schedule(const std::string& backend) {
  with_group(backend, 3, [](const Group& group) {
    const par::DeviceMesh mesh(group, {{"pp", 3}});
    Stages model;
    par::Pipeline run(model, mesh["pp"], {.chain = kChain, .micro_batches_per_rank = 4});
    const auto loss = [&](const ls::Tensor& in, const ls::Tensor& y) { return nn::mse_loss(model(in), y); };
    const double want = run.backward(ls::ones({8, 8}), ls::ones({8, 8}), loss).item<double>();
    const ls::Tensor own = ls::full({8, 8}, group->rank() == 1 ? 2 : 1);
    const std::string text = error_in([&] { run.backward(own, own, loss); });
    CHECK_MESSAGE(contains(text, "rank 1 of the axis has other tensors than rank 0"), text);
    const std::string rows = error_in([&] { run.backward(ls::ones({8, 8}), ls::ones({7, 8}), loss); });
    CHECK_MESSAGE(contains(rows, "rows"), rows);
    CHECK(run.backward(ls::ones({8, 8}), ls::ones({8, 8}), loss).item<double>() == want);
  });
}

}  // namespace failing_stages
