// ShardedDataParallel with ranks that have different numbers of batches, and comparisons between ranks.
#include "tests/parallel/step/join.h"

namespace par = ls::parallel;

namespace {

void check_sharded(const Group& group, const UnevenRun& uneven, par::ShardedDataParallelOptions options) {
  std::vector<double> losses;
  const std::vector<ls::Tensor> want = uneven_reference(uneven, losses);
  Counting model(group->rank() == 0 ? 1 : 99);
  options.weighting = uneven.ddp.weighting;
  options.units = {"fc1"};
  options.check_every = 1;
  par::ShardedDataParallel run(model, group, options);
  ls::optim::SGD optimizer(run.parameters(), {.lr = kUnevenRate});
  const auto optimize = [&] {
    run.clip_grad_norm_(1e9);  // changes nothing, but takes part in a collective
    optimizer.step();
  };
  const int own = uneven.batches[static_cast<std::size_t>(group->rank())];
  const int most = *std::ranges::max_element(uneven.batches);
  run.join(
      [&] {
        for (int k = 0; k < own; ++k) {
          const UnevenBatch batch(group->rank(), k);
          optimizer.zero_grad();
          const ls::Tensor loss = run.backward(batch.x, batch.y, [&](const ls::Tensor& x, const ls::Tensor& y) {
            return ls::nn::MSELoss()(model(x), y);
          });
          CHECK(loss.item<double>() == doctest::Approx(losses[static_cast<std::size_t>(k)]).epsilon(1e-4));
          optimize();
        }
      },
      {.divide_by_initial_world_size = uneven.by_initial, .shadow_step = optimize});
  CHECK(run.stats().steps == most);
  run.gathered([&] {
    CHECK(model.seen->item<double>() == most);  // one forward per step, on the rank whose buffers count
    const auto named = model.named_parameters();
    for (std::size_t i = 0; i < named.size(); ++i) check_close(*named[i].second, want[i], named[i].first, {1e-4, 1e-5});
  });
}

}  // namespace

TEST_CASE("sharded join: ranks without batches step their own part, and the result is that of one process") {
  for (const std::vector<int>& batches :
       std::vector<std::vector<int>>{{3}, {2, 5}, {5, 2}, {0, 3}, {4, 1, 3}, {0, 4, 2, 4}, {3, 3}, {0, 0}}) {
    CAPTURE(batches.size());
    CAPTURE(batches[0]);
    for (int stage = 1; stage <= 3; ++stage) {
      for (const bool by_initial : {true, false}) {
        const UnevenRun uneven = {.batches = batches, .by_initial = by_initial};
        const UnevenRun weighted = {
            .batches = batches, .by_initial = by_initial, .ddp = {.weighting = par::Weighting::kSamples}};
        with_group("local", static_cast<int>(batches.size()), [&](const Group& group) {
          check_sharded(group, uneven, {.stage = stage});
          check_sharded(group, uneven, {.stage = stage, .micro_batches_per_rank = 2});
          check_sharded(group, weighted, {.stage = stage});
        });
      }
    }
  }
}

TEST_CASE("sharded join: what would leave a part of the model unstepped is refused") {
  with_group("local", 2, [](const Group& group) {
    Counting model;
    par::ShardedDataParallel run(model, group);
    CHECK_THROWS_WITH_AS(run.join([] {}, {}),
                         "ShardedDataParallel: join without .shadow_step, but a rank without data has a part of the "
                         "model to step\nPass {.shadow_step = [&] { optimizer.step(); }}",
                         ls::InvalidArgument);
    const par::JoinOptions options = {.shadow_step = [] {}};
    run.join([&] { CHECK_THROWS_AS(run.join([] {}, options), ls::InvalidArgument); }, options);
    const auto guard = run.no_sync();
    CHECK_THROWS_AS(run.join([] {}, options), ls::InvalidArgument);
  });
}

TEST_CASE("sharded join: what ranks that have joined cannot take part in is refused") {
  with_group("local", 2, [](const Group& group) {
    Counting model;
    par::ShardedDataParallel run(model, group);
    const auto step = [&] {
      const UnevenBatch batch(group->rank(), 0);
      run.backward(batch.x, batch.y,
                   [&](const ls::Tensor& x, const ls::Tensor& y) { return ls::nn::MSELoss()(model(x), y); });
    };
    run.join(
        [&] {
          CHECK(contains(error_of([&] { const auto guard = run.no_sync(); }), "no_sync inside join"));
          CHECK(contains(error_of([&] { run.gathered([] {}); }), "gathered inside join"));
          CHECK(contains(error_of([&] { run(UnevenBatch(0, 0).x); }), "operator() inside join"));
          step();
          CHECK(contains(error_of(step), "call optimizer.zero_grad() before each step"));
        },
        {.shadow_step = [] {}});
  });
}

TEST_CASE("sharded join: with throw_on_early_termination all ranks name the rank that has no more data") {
  with_group("local", 3, [](const Group& group) {
    Counting model;
    par::ShardedDataParallel run(model, group);
    const auto loop = [&] {
      for (int k = 0; k < 3 + group->rank(); ++k) {
        for (const ls::nn::Parameter& piece : run.parameters()) piece->set_grad(ls::Tensor());
        const UnevenBatch batch(group->rank(), k);
        run.backward(batch.x, batch.y,
                     [&](const ls::Tensor& x, const ls::Tensor& y) { return ls::nn::MSELoss()(model(x), y); });
      }
    };
    CHECK_THROWS_WITH_AS(run.join(loop, {.throw_on_early_termination = true, .shadow_step = [] {}}),
                         "ShardedDataParallel: join: rank 0 has no more data after 3 steps, rank 2 is at step 4",
                         ls::CommError);
  });
}

TEST_CASE("check_every of a sharded run finds ranks that have diverged, and names the parameter") {
  with_group("local", 2, [](const Group& group) {
    Counting model;
    model.fc2.weight->requires_grad_(false);
    par::ShardedDataParallel run(model, group, {.stage = 1, .check_every = 2});
    const auto step = [&] {
      const UnevenBatch batch(group->rank(), 0);
      run.backward(batch.x, batch.y,
                   [&](const ls::Tensor& x, const ls::Tensor& y) { return ls::nn::MSELoss()(model(x), y); });
    };
    for (int k = 0; k < 3; ++k) step();
    for (const par::ShardedParameter& each : run.named_parameters()) {
      const ls::NoGradGuard no_grad;  // rank 0 has all elements, and rank 1 has gathered them before
      if (group->rank() == 0 && each.name == "fc2.weight") each.parameter->fill_(17.0);
    }
    step();
    CHECK_THROWS_WITH_AS(step(), "ShardedDataParallel: replicas have diverged: fc2.weight of rank 1 is not rank 0's",
                         ls::CommError);
  });
}
