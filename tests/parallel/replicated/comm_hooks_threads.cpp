// Communication hooks, with ranks as threads.
#include "tests/parallel/replicated/comm_hooks.h"

#include "tests/parallel/replicated/several_models.h"
#include "tests/parallel/step/join.h"

using ls::parallel::allreduce_hook;
using ls::parallel::bf16_compress_hook;
using ls::parallel::CommHook;
using ls::parallel::DistributedDataParallel;
using ls::parallel::DistributedDataParallelOptions;
using ls::parallel::fp16_compress_hook;
using ls::parallel::GradBucket;
using ls::parallel::Phase;
using ls::parallel::PowerSgdHook;
using ls::parallel::PowerSgdOptions;
using ls::parallel::Weighting;
using ls::parallel::Work;

namespace {

std::shared_ptr<CommHook> power_sgd() {
  return std::make_shared<PowerSgdHook>(PowerSgdOptions{.rank = 2, .start_iteration = 2, .min_compression_rate = 0.5});
}

// A mean that throws on request.
class Failing final : public CommHook {
 public:
  std::shared_ptr<Work> start(const GradBucket& bucket, ls::parallel::ProcessGroup& group) override {
    if (bucket.index == fail_start) throw ls::InvalidArgument("no start");
    if (bucket.index == fail_null) return nullptr;
    return ls::parallel::then(group.all_reduce(bucket.buffer, ls::parallel::ReduceOp::kAvg),
                              [fails = bucket.index == fail_wait] {
                                if (fails) throw ls::InvalidArgument("no end");
                              });
  }
  std::string describe() const override { return "failing"; }
  static constexpr std::size_t kNever = 1000;
  std::size_t fail_start = kNever, fail_wait = kNever, fail_null = kNever;
};

// Trains 6 steps. Returns the hash of the parameters, and in `bytes` the bytes of this rank's gradients.
std::uint64_t train(const Group& group, const std::shared_ptr<CommHook>& hook, std::int64_t* bytes = nullptr,
                    const DistributedDataParallelOptions& options = {.bucket_cap_mb = 1e-4}) {
  Counting model;
  DistributedDataParallel ddp(model, group, options);
  if (hook) ddp.register_comm_hook(hook);
  ls::optim::SGD optimizer(model.parameters(), {.lr = 0.1, .momentum = 0.9});
  const std::int64_t before = group->traffic().bytes(Phase::kGradients);
  for (int k = 0; k < 6; ++k) {
    const UnevenBatch batch(group->rank(), k);
    optimizer.zero_grad();
    ddp.backward(batch.x, batch.y,
                 [&](const ls::Tensor& x, const ls::Tensor& y) { return ls::nn::MSELoss()(model(x), y); });
    optimizer.step();
  }
  if (bytes) *bytes = group->traffic().bytes(Phase::kGradients) - before;
  return ls::nn::parameter_hash(model);
}

}  // namespace

TEST_CASE("hooks: allreduce_hook gives the bits of no hook, for any ranks, micro-batches and weights") {
  for (const int ranks : {1, 2, 3, 4}) {
    for (const int micro_batches : {1, 2}) {
      CAPTURE(ranks);
      CAPTURE(micro_batches);
      with_group("local", ranks, [&](const Group& group) {
        const DistributedDataParallelOptions options{.bucket_cap_mb = 1e-4, .micro_batches_per_rank = micro_batches};
        CHECK(train(group, nullptr, nullptr, options) == train(group, allreduce_hook(), nullptr, options));
      });
    }
  }
  with_group("local", 2, [&](const Group& group) {  // with a power of two both ways of scaling are equal
    const DistributedDataParallelOptions options{.weighting = Weighting::kSamples};
    CHECK(train(group, nullptr, nullptr, options) == train(group, allreduce_hook(), nullptr, options));
  });
}

TEST_CASE("hooks: fp16 and bf16 equal rounding by hand, bit for bit") {
  for (const int ranks : {1, 2, 3, 4}) {
    CAPTURE(ranks);
    with_group("local", ranks, check_casts);
  }
}

TEST_CASE("hooks: PowerSGD reproduces matrices of its rank, and all ranks have the same bits") {
  for (const int ranks : {1, 2, 3, 4}) {
    CAPTURE(ranks);
    with_group("local", ranks, [](const Group& group) {
      for (const ls::DType dtype : {ls::kFloat32, ls::kFloat64}) {
        for (const std::int64_t rank : {1, 2, 3}) check_power_sgd(group, rank, dtype);
      }
    });
  }
}

TEST_CASE("hooks: PowerSGD starts after start_iteration steps, and then depends on the seed alone") {
  with_group("local", 2, [](const Group& group) {
    const auto after = [&](std::uint64_t seed, int steps, std::int64_t start) {
      Given model(Shapes{{12, 10}});
      DistributedDataParallel ddp(model, group);
      ddp.register_comm_hook(std::make_shared<PowerSgdHook>(PowerSgdOptions{.start_iteration = start, .seed = seed}));
      ls::Tensor last;
      for (int k = 0; k < steps; ++k) last = averaged(model, {gradient_of(group->rank(), {12, 10})})[0];
      return last;
    };
    const ls::Tensor mean = mean_by_hand({gradient_of(0, {12, 10}), gradient_of(1, {12, 10})}, ls::kFloat32);
    CHECK(same_bits(after(0, 3, 3), mean));
    CHECK(!same_bits(after(0, 4, 3), mean));
    CHECK(same_bits(after(5, 4, 3), after(5, 4, 3)));
    CHECK(!same_bits(after(5, 4, 3), after(6, 4, 3)));
  });
}

TEST_CASE("hooks: with error feedback the sent gradients add up to the true sum; without it a part is never sent") {
  with_group("local", 3, [](const Group& group) {
    const auto left_out = [&](bool feedback, bool warm, int steps) {
      Given model(Shapes{{12, 10}});
      DistributedDataParallel ddp(model, group);
      ddp.register_comm_hook(std::make_shared<PowerSgdHook>(
          PowerSgdOptions{.start_iteration = 0, .use_error_feedback = feedback, .warm_start = warm}));
      ls::Tensor sum = ls::zeros({12, 10}), mean = ls::zeros({12, 10});
      for (int r = 0; r < 3; ++r) mean = mean + gradient_of(r, {12, 10}) / 3;
      for (int k = 0; k < steps; ++k) sum = sum + averaged(model, {gradient_of(group->rank(), {12, 10})})[0];
      return error_of_mean(sum / steps, mean);
    };
    CHECK(left_out(true, true, 10) < 0.9);
    CHECK(left_out(true, true, 160) < 0.12);
    CHECK(left_out(true, false, 160) < 0.12);
    CHECK(left_out(false, true, 160) > 0.3);
  });
}

TEST_CASE("hooks: PowerSGD recovers after gradients of zeros and after a NaN") {
  with_group("local", 2, [](const Group& group) {
    Given model(Shapes{{12, 10}});
    DistributedDataParallel ddp(model, group);
    ddp.register_comm_hook(std::make_shared<PowerSgdHook>(PowerSgdOptions{.start_iteration = 0}));
    const ls::Tensor one = ls::matmul(numbers({12, 1}), numbers({1, 10}));
    CHECK(error_of_mean(averaged(model, {ls::zeros({12, 10})})[0] + one, one) == 0);
    CHECK(error_of_mean(averaged(model, {one})[0], one) < 1e-5);
    averaged(model, {one * (group->rank() == 0 ? kNan : 1)});
    CHECK(error_of_mean(averaged(model, {one})[0], one) < 1e-5);
  });
}

TEST_CASE("hooks: losses, used parameters and stop requests stay exact") {
  with_group("local", 3, [](const Group& group) {
    for (const auto make : {fp16_compress_hook, bf16_compress_hook, power_sgd}) {
      PartlyUsed with(0), without(0);
      DistributedDataParallel hooked(with, group), plain(without, group);
      hooked.register_comm_hook(make());
      const auto step = [&](DistributedDataParallel& ddp, const PartlyUsed& model) {
        const ls::Tensor x = inputs(group->rank());
        return ddp.backward(x, x, [&](const ls::Tensor& x, const ls::Tensor&) {
          return mean_square(model.use(x, group->rank() == 1, false));
        });
      };
      CHECK(same_bits(step(hooked, with), step(plain, without)));
      CHECK(hooked.unused_parameters() == plain.unused_parameters());
      CHECK(with.first.weight->grad().defined());
      CHECK(!with.second.weight->grad().defined());
      CHECK(!hooked.stop_requested());
      if (group->rank() == 2) hooked.request_stop();
      step(hooked, with);
      CHECK(hooked.stop_requested());
    }
  });
}

TEST_CASE("hooks: an exception of a hook is the step's error and names the bucket, and the next step works") {
  with_group("local", 3, [](const Group& group) {
    Given model(Shapes{{4}, {4}, {4}});
    DistributedDataParallel ddp(model, group, {.bucket_cap_mb = 1e-5});
    const auto hook = std::make_shared<Failing>();
    ddp.register_comm_hook(hook);
    const std::vector<ls::Tensor> own(3, ls::full({4}, 3.0 * group->rank()));
    const auto check_error = [&](std::size_t Failing::*where, const std::string& text) {
      hook.get()->*where = 1;
      const std::string error = error_of<ls::InvalidArgument>([&] { averaged(model, own); });
      CHECK_MESSAGE((contains(error, "bucket 1 of 3") && contains(error, "w1") && contains(error, text)), error);
      hook.get()->*where = Failing::kNever;
      for (const ls::Tensor& grad : averaged(model, own)) CHECK(same_bits(grad, ls::full({4}, 3.0)));
    };
    for (int repeat = 0; repeat < 20; ++repeat) {
      check_error(&Failing::fail_start, "no start");
      check_error(&Failing::fail_wait, "no end");
    }
    check_error(&Failing::fail_null, "no Work");
    CHECK(ddp.stats().steps == 41);
  });
}

TEST_CASE("hooks: a hook is registered once, before the first step, and is the same on all ranks") {
  with_group("local", 2, [](const Group& group) {
    Given model(Shapes{{4}});
    DistributedDataParallel ddp(model, group), late(model, group);
    CHECK(contains(error_of([&] { ddp.register_comm_hook(nullptr); }), "null"));
    const std::string differ = error_of<ls::CommError>(
        [&] { ddp.register_comm_hook(group->rank() == 0 ? fp16_compress_hook() : bf16_compress_hook()); });
    CHECK_MESSAGE(contains(differ, "rank 0 has fp16_compress_hook, rank 1 has bf16_compress_hook"), differ);
    ddp.register_comm_hook(allreduce_hook());
    CHECK(contains(error_of([&] { ddp.register_comm_hook(fp16_compress_hook()); }), "allreduce_hook"));
    averaged(model, {ls::ones({4})});
    CHECK(contains(error_of([&] { late.register_comm_hook(allreduce_hook()); }), "after 1 steps"));
    CHECK(contains(error_of([] { PowerSgdHook({.rank = 0}); }), "rank is 0"));
    CHECK(contains(error_of([] { PowerSgdHook({.start_iteration = -1}); }), "start_iteration"));
    CHECK(contains(error_of([] { PowerSgdHook({.min_compression_rate = 0}); }), "min_compression_rate"));
  });
}

TEST_CASE("hooks: compression reduces the bytes sent, which the traffic counters record as gradients") {
  with_group("local", 2, [](const Group& group) {
    const auto sent = [&](const std::shared_ptr<CommHook>& hook) {
      Given model(Shapes{{64, 64}});
      DistributedDataParallel ddp(model, group);
      if (hook) ddp.register_comm_hook(hook);
      const std::int64_t before = group->traffic().bytes(Phase::kGradients);
      averaged(model, {gradient_of(group->rank(), {64, 64})});
      return group->traffic().bytes(Phase::kGradients) - before;
    };
    constexpr std::int64_t kTail = 4 * 6;
    CHECK(sent(nullptr) == 4 * 64 * 64 + kTail);
    CHECK(sent(allreduce_hook()) == 4 * 64 * 64 + kTail);
    CHECK(sent(bf16_compress_hook()) == 2 * 64 * 64 + kTail);
    CHECK(sent(std::make_shared<PowerSgdHook>(PowerSgdOptions{.rank = 2, .start_iteration = 0})) ==
          4 * 2 * (64 + 64) + kTail);
  });
}

TEST_CASE("hooks: a small model learns with each hook, and all ranks keep the same parameters") {
  for (const int ranks : {1, 2, 3, 4}) {
    with_group("local", ranks, [&](const Group& group) {
      for (const auto make : {allreduce_hook, fp16_compress_hook, bf16_compress_hook, power_sgd}) {
        Counting model;
        DistributedDataParallel ddp(model, group, {.check_every = 10});
        ddp.register_comm_hook(make());
        ls::optim::SGD optimizer(model.parameters(), {.lr = 0.2});
        const ls::Tensor x = numbers({16, 3}, {}, 30 + static_cast<std::uint32_t>(group->rank())),
                         y = ls::matmul(x, numbers({3, 2}, {}, 8));
        double first = 0, last = 0;
        for (int k = 0; k < 150; ++k) {
          optimizer.zero_grad();
          last = ddp.backward(x, y,
                              [&](const ls::Tensor& x, const ls::Tensor& y) { return ls::nn::MSELoss()(model(x), y); })
                     .item<double>();
          if (k == 0) first = last;
          optimizer.step();
        }
        CHECK(last < first / 5);
      }
    });
  }
}

TEST_CASE("hooks: they work with join, no_sync and two models on one group") {
  for (const auto hook : {allreduce_hook, power_sgd}) {
    for (const std::vector<int>& batches : {std::vector<int>{2, 5}, {0, 2, 1}, {2, 0}}) {
      // PowerSGD averages the first two steps uncompressed; below it is compared with itself.
      UnevenRun run{.batches = batches, .hook = hook};
      if (hook == power_sgd) run.batches = std::vector<int>(batches.size(), 1), run.batches[0] = 2;
      with_group("local", static_cast<int>(batches.size()), [&](const Group& group) { check_uneven(group, run); });
      run.by_initial = false;
      run.ddp.weighting = Weighting::kSamples;
      with_group("local", static_cast<int>(batches.size()), [&](const Group& group) { check_uneven(group, run); });
    }
  }
  with_group("local", 2, [](const Group& group) {
    Given model(Shapes{{12, 10}}), other(Shapes{{12, 10}});
    DistributedDataParallel ddp(model, group), second(other, group);
    ddp.register_comm_hook(std::make_shared<PowerSgdHook>(PowerSgdOptions{.start_iteration = 0}));
    second.register_comm_hook(bf16_compress_hook());
    const ls::Tensor one = ls::matmul(numbers({12, 1}), numbers({1, 10}));
    {
      const auto guard = ddp.no_sync();
      averaged(model, {one * (1.0 + group->rank())});
    }
    const ls::Tensor of_model = model.loss({one}), of_other = other.loss({one});
    (group->rank() == 0 ? of_model + of_other : of_other + of_model).backward();
    CHECK(error_of_mean(model.parameters()[0]->grad(), one * 2.5) < 1e-5);
    CHECK(error_of_mean(other.parameters()[0]->grad(), one) < 0.01);
  });
}
