// BatchNormOptions::all_micro_batches where micro-batches and ranks are threads.
#include "tests/parallel/step/batch_statistics.h"

using namespace batch_statistics;

namespace {

const std::vector<std::optional<double>> kMomenta = {0.1, std::nullopt};

// The running statistics of a loop over the micro-batches, in PyTorch's formula. The model's parameters do not change.
void check_loop(std::optional<double> momentum, int micro_batches, std::int64_t samples) {
  CAPTURE(micro_batches);
  CAPTURE(samples);
  AllNet loop(momentum, /*all=*/false), model(momentum);
  par::GradientAccumulation run(model, {.micro_batches = micro_batches});
  for (int step = 0; step < 3; ++step) {
    const Batch all = batch(samples, step);
    for (std::int64_t s = 0, first = 0; s < micro_batches && first < samples; ++s) {
      const std::int64_t count = samples / micro_batches + (s < samples % micro_batches);
      loop(all.x.narrow(0, first, count));
      first += count;
    }
    run.backward(all.x, all.y, [&](const ls::Tensor& x, const ls::Tensor&) { return ls::sum(model(x)); });
  }
  CHECK(ls::equal(*model.images->num_batches_tracked, *loop.images->num_batches_tracked));
  CHECK(ls::equal(*model.vectors->num_batches_tracked, *loop.vectors->num_batches_tracked));
  CHECK(loop.vectors->num_batches_tracked->item<std::int64_t>() == 6 * std::min<std::int64_t>(samples, micro_batches));
  for (const auto& [name, buffer] : model.named_buffers())
    check_close(*buffer, loop.state_dict().at(name), name, {1e-6, 1e-6});
}

}  // namespace

TEST_CASE("with all_micro_batches the running statistics are those of a loop over the micro-batches") {
  for (const std::optional<double>& momentum : kMomenta) {
    for (const int micro_batches : {1, 2, 3, 4}) {
      check_loop(momentum, micro_batches, 12);
      check_loop(momentum, micro_batches, 11);
    }
  }
}

TEST_CASE("without all_micro_batches they are those of the first micro-batch") {
  AllNet first(0.1, /*all=*/false), model(0.1, /*all=*/false);
  const Batch all = batch(12, 0);
  first(all.x.narrow(0, 0, 3));
  par::GradientAccumulation run(model, {.micro_batches = 4});
  run.backward(all.x, all.y, [&](const ls::Tensor& x, const ls::Tensor&) { return ls::sum(model(x)); });
  for (const auto& [name, buffer] : model.named_buffers()) CHECK(same_bits(*buffer, first.state_dict().at(name)));
}

TEST_CASE("with all_micro_batches DataParallel gives the bits of accumulation") {
  for (const std::optional<double>& momentum : kMomenta) {
    for (const int micro_batches : {1, 2, 3, 4}) {
      CAPTURE(micro_batches);
      AllNet model(momentum), called(momentum);
      par::DataParallel run(model, devices(micro_batches)), call(called, devices(micro_batches));
      CHECK(same(train(run, 24, whole), accumulated(momentum, micro_batches)));
      train(call, 24, whole, /*own_backward=*/true);
      CHECK(called.vectors->num_batches_tracked->item<std::int64_t>() == 6 * micro_batches);
      CHECK(same_bits(*called.images->num_batches_tracked, *model.images->num_batches_tracked));
    }
  }
}

TEST_CASE("with all_micro_batches DDP and every stage give the bits of accumulation") {
  for (const std::optional<double>& momentum : kMomenta) {
    check_all_micro_batches("local", momentum, 4, 4);
    check_all_micro_batches("local", momentum, 4, 2);
    check_all_micro_batches("local", momentum, 3, 3);
  }
}

TEST_CASE("with all_micro_batches a backward that the user calls updates by all ranks") {
  const Values want = accumulated(0.1, 2);
  for (int stage = 0; stage <= 3; ++stage) {
    CAPTURE(stage);
    with_group("local", 2, [&](const Group& group) {
      AllNet model(0.1);
      const Values got = with_stage(stage, model, group, 1, [&](auto& run) {
        return train(run, 24, part(group->rank(), 2), /*own_backward=*/true);
      });
      CHECK(same(got, want));
    });
  }
}

TEST_CASE("with all_micro_batches recomputation, ranks without samples, and failed steps update once or not at all") {
  const Values want = accumulated(0.1, 2);
  AllNet recomputed(0.1);
  recomputed.recompute = true;
  par::GradientAccumulation run(recomputed, {.micro_batches = 2});
  CHECK(same(train(run, 24, whole), want));

  AllNet few(0.1), failing(0.1);
  par::GradientAccumulation three(few, {.micro_batches = 3}), fails(failing, {.micro_batches = 3});
  train(three, 7, whole);
  with_group("local", 4, [&](const Group& group) {  // rank 3 has no samples
    AllNet model(0.1);
    par::DistributedDataParallel ddp(model, group);
    const std::vector<std::int64_t> first = {0, 3, 5, 7, 7};
    train(ddp, 7, [&](const Batch& all) {
      const auto r = static_cast<std::size_t>(group->rank());
      return all.part(first[r], first[r + 1] - first[r]);
    });
    CHECK(ls::equal(*model.images->num_batches_tracked, *few.images->num_batches_tracked));
    check_close(*model.vectors->running_mean, few.vectors->running_mean->detach(), "running_mean", {1e-5, 1e-6});
  });
  const Values before = values_of(fails);
  int calls = 0;
  CHECK_THROWS(fails.backward(batch(6, 0).x, batch(6, 0).y, [&](const ls::Tensor& x, const ls::Tensor&) {
    const ls::Tensor loss = ls::sum(failing(x));
    return ++calls == 2 ? throw ls::Error("no") : loss;
  }));
  CHECK(same(values_of(fails), before));
}

TEST_CASE("with all_micro_batches eval mode reads the running statistics and changes nothing") {
  AllNet model(0.1);
  model.eval();
  par::GradientAccumulation run(model, {.micro_batches = 2});
  const ls::Tensor mean = model.images->running_mean->clone();
  const Batch all = batch(8, 0);
  ls::Tensor got;
  run.backward(all.x, all.y, [&](const ls::Tensor& x, const ls::Tensor&) { return ls::sum(got = model(x)); });
  CHECK(same_bits(*model.images->running_mean, mean));
  CHECK(same_bits(got.detach(), model(all.x.narrow(0, 4, 4)).detach()));
}
