// Training with tensor parallelism of any model, with the data and layouts of tensor_training.h.
#pragma once

#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "tests/parallel/model_parallel/tensor_training.h"
#include "tests/support/files.h"

namespace tensor_training {

// A model with its plan.
struct Subject {
  std::function<std::unique_ptr<nn::Module>()> make;
  par::ParallelPlan plan;
  bool bf16 = false, deferred = false, sequence = false;
};

inline void train_on(const Group& group, int slices, const Layout& layout, const Subject& subject, int steps,
                     Outcome& outcome, std::mutex& mutex) {
  ls::manual_seed(3);
  const par::DeviceMesh mesh(group, {{"dp", layout.dp}, {"tp", layout.tp}});
  std::optional<nn::DeferredInit> deferred;
  if (subject.deferred) deferred.emplace();
  const std::unique_ptr<nn::Module> model = subject.make();
  deferred.reset();
  par::parallelize(*model, mesh["tp"],
                   {.tensor_slices = slices, .sequence_parallel = subject.sequence, .plan = subject.plan});
  Outcome own;
  const int d = mesh["dp"].rank(), each = kMicroBatches / layout.dp;
  const auto finish = [&](auto& run) {
    ls::optim::AdamW optimizer(run.parameters(), {.lr = 1e-2});
    train_steps(run, optimizer, layout, {.bf16 = subject.bf16}, d, 0, steps, own);
    par::save_checkpoint("subject.safetensors", {.model = &run, .optimizer = &optimizer});
    std::uint64_t hash = 0;
    std::vector<float> logits;  // of the whole model
    run.gathered([&] {
      const ls::NoGradGuard no_grad;
      hash = nn::parameter_hash(*model);
      model->eval();
      logits = (*model)(ls::arange(2 * kTime).reshape({2, kTime})).to_vector<float>();
      model->train();
    });
    const std::lock_guard lock(mutex);
    if (outcome.hash == 0) outcome.hash = hash;
    CHECK(outcome.hash == hash);
    if (outcome.logits.empty()) outcome.logits = logits;
    CHECK(outcome.logits == logits);
    if (outcome.losses.empty()) outcome.losses = own.losses, outcome.norms = own.norms;
    CHECK(outcome.losses == own.losses);
    CHECK(outcome.norms == own.norms);
    for (const par::ShardedParameter& piece : run.named_parameters()) put_together::put(piece, outcome.parameters);
  };
  if (layout.dp == 1 && layout.stage == 0) {
    par::GradientAccumulation run(*model, {.micro_batches = kMicroBatches});
    finish(run);
  } else if (layout.stage == 0) {
    par::DistributedDataParallel run(*model, mesh["dp"].group(), {.micro_batches_per_rank = each});
    finish(run);
  } else {
    par::ShardedDataParallel run(*model, mesh["dp"].group(),
                                 {.stage = layout.stage, .units = {"blocks.*"}, .micro_batches_per_rank = each});
    finish(run);
  }
}

inline Outcome train_subject(int slices, const Layout& layout, const Subject& subject, int steps = kSteps) {
  Outcome outcome;
  std::mutex mutex;
  if (layout.ranks() == 1)
    train_on(nullptr, slices, layout, subject, steps, outcome, mutex);
  else
    with_threads("local", layout.ranks(),
                 [&](const Group& group) { train_on(group, slices, layout, subject, steps, outcome, mutex); });
  outcome.file = content_of_file("subject.safetensors");
  return outcome;
}

// All layouts have the bits of the first.
inline void check_same_bits(int slices, const Subject& subject, const std::vector<Layout>& layouts) {
  std::optional<Outcome> want;
  for (const Layout& layout : layouts) {
    CAPTURE(slices);
    CAPTURE(layout.describe());
    const Outcome got = train_subject(slices, layout, subject);
    if (!want) want = got;
    CHECK(got.losses == want->losses);
    CHECK(got.norms == want->norms);
    CHECK(got.hash == want->hash);
    CHECK(got.logits == want->logits);
    CHECK(got.file.size() > 0);
    CHECK((got.file == want->file));
    for (const auto& each : want->parameters) CHECK_MESSAGE(got.parameters.at(each.first) == each.second, each.first);
    CHECK(got.parameters.size() == want->parameters.size());
  }
}

// With several slices, losses and norms are near those of one.
inline void check_near(int slices, const Layout& layout, const Subject& subject, int steps = kSteps) {
  const Outcome one = train_subject(1, {}, subject, steps), several = train_subject(slices, layout, subject, steps);
  for (std::size_t i = 0; i < one.losses.size(); ++i) {
    CHECK(several.losses[i] == doctest::Approx(one.losses[i]).epsilon(1e-5));
    CHECK(several.norms[i] == doctest::Approx(one.norms[i]).epsilon(1e-4));
  }
}

}  // namespace tensor_training
