// One training loop, a template over the mode: all modes offer the same functions and give the same bits.

#include "tests/support/groups.h"

namespace {

namespace par = ls::parallel;

constexpr int kMicroBatches = 4;

struct Net : ls::nn::Module {
  ls::nn::Linear& fc1 = add<ls::nn::Linear>("fc1", 3, 8);
  ls::nn::BatchNorm1d& norm = add<ls::nn::BatchNorm1d>("norm", 8);
  ls::nn::Linear& fc2 = add<ls::nn::Linear>("fc2", 8, 2);
  Net() {
    std::uint32_t salt = 0;
    const ls::NoGradGuard no_grad;
    for (const ls::nn::Parameter& p : parameters()) p->copy_(numbers(p->shape(), {}, ++salt));
  }
  ls::Tensor forward(const ls::Tensor& x) const override { return fc2(ls::relu(norm(fc1(x)))); }
};

// Trains with everything that modes offer. Returns the parameters after 3 steps, as numbers.
template <class Mode>
std::vector<float> train(Mode& run, const std::string& name, int rank = 0, int ranks = 1) {
  ls::optim::AdamW optimizer(run.parameters(), {.lr = 0.05});
  CHECK(run.named_parameters().size() == run.parameters().size());
  CHECK(run.named_parameters()[0].name == "fc1.weight");
  CHECK(run.named_parameters()[0].shape == ls::Shape{8, 3});
  CHECK((run.group() ? run.group()->size() : 1) == ranks);
  const std::int64_t rows = 24 / ranks;
  const ls::Tensor x = numbers({24, 3}, {}, 7).narrow(0, rank * rows, rows),
                   y = numbers({24, 2}, {}, 8).narrow(0, rank * rows, rows);
  std::vector<float> losses;  // also compared between modes
  const ls::nn::MSELoss criterion;
  const auto loss_fn = [&](const ls::Tensor& in, const ls::Tensor& out) { return criterion(run.module()(in), out); };
  for (int step = 0; step < 3; ++step) {
    optimizer.zero_grad();
    if (step == 2) run.request_stop();
    const ls::Tensor before = run.evaluate(x, y, loss_fn);
    CHECK(same_bits(before, run.backward(x, y, loss_fn)));
    CHECK(run.clip_grad_norm_(0.5) > 0);
    optimizer.step();
    CHECK(run.stop_requested() == (step == 2));
  }
  run.module().eval();
  losses.push_back(run.evaluate(std::vector<ls::Tensor>{x}, y,
                                [&](const std::vector<ls::Tensor>& in, const ls::Tensor& out) {
                                  return criterion(run.module()(in[0]), out);
                                })
                       .template item<float>());
  {
    const auto guard = run.no_sync();
    CHECK_NOTHROW(run.backward(x, y, loss_fn));
  }
  CHECK(run.plan().parameter_bytes > 0);
  CHECK(run.plan().to_string().find("optimizer state") != std::string::npos);
  CHECK((run.traffic().bytes() > 0) == (ranks > 1 || name == "dp"));
  CHECK(run.stats().steps == (ranks == 1 ? 0 : 3));
  std::vector<float> values = losses;
  run.gathered([&] {
    for (const ls::nn::Parameter& p : run.module().parameters()) {
      const std::vector<float> each = p->template to_vector<float>();
      values.insert(values.end(), each.begin(), each.end());
    }
  });
  const std::string file = name + ".safetensors";
  par::save_checkpoint(file, {.model = &run, .optimizer = &optimizer});
  par::load_checkpoint(file, {.model = &run, .optimizer = &optimizer});
  return values;
}

std::vector<float> reference() {
  Net model;
  par::GradientAccumulation run(model, {.micro_batches = kMicroBatches});
  return train(run, "accumulate");
}

}  // namespace

TEST_CASE("a training loop is a template over the mode, in one process") {
  const std::vector<float> want = reference();
  Net model;
  par::DataParallel run(model, {"cpu:0", "cpu:1", "cpu:2", "cpu:3"});
  CHECK(train(run, "dp") == want);
}

TEST_CASE("a training loop is a template over the mode, over ranks") {
  const std::vector<float> want = reference();
  for (const int ranks : {2, 4}) {
    for (int stage = 0; stage <= 3; ++stage) {
      CAPTURE(ranks);
      CAPTURE(stage);
      with_group("local", ranks, [&](const Group& group) {
        Net model;
        const std::string name = "stage" + std::to_string(stage);
        if (stage == 0) {
          par::DistributedDataParallel run(model, group, {.micro_batches_per_rank = kMicroBatches / ranks});
          CHECK(train(run, name, group->rank(), ranks) == want);
        } else {
          par::ShardedDataParallel run(model, group, {.stage = stage, .micro_batches_per_rank = kMicroBatches / ranks});
          CHECK(train(run, name, group->rank(), ranks) == want);
        }
      });
    }
  }
}

TEST_CASE("the plan of DistributedDataParallel is what its counters count") {
  for (const int ranks : {2, 3}) {
    with_group("local", ranks, [&](const Group& group) {
      Net model;
      par::DistributedDataParallel run(model, group, {.sync_buffers = false});
      const ls::nn::MSELoss criterion;
      for (int step = 0; step < 2; ++step) {
        run.backward(numbers({4, 3}, {}, 1), numbers({4, 2}, {}, 2),
                     [&](const ls::Tensor& x, const ls::Tensor& y) { return criterion(model(x), y); });
      }
      std::int64_t sent = 0;
      for (const par::LinkTraffic& link : run.traffic().step_links()) {
        if (link.from == group->rank()) sent += link.bytes;
      }
      CHECK(run.plan().bytes_per_step == sent);
      CHECK(run.plan().parameter_bytes == run.plan().gradient_bytes);
    });
  }
}

TEST_CASE("modes give deferred parameters storage and their initial values") {
  ls::manual_seed(5);
  const ls::nn::Linear want(3, 2);
  const auto deferred = [] {
    const ls::nn::DeferredInit deferred(5);
    return std::make_unique<ls::nn::Linear>(3, 2);
  };
  const auto one = deferred(), two = deferred();
  const par::GradientAccumulation run(*one);
  CHECK(same_bits(one->weight->detach(), want.weight->detach()));
  with_threads("local", 1, [&](const Group& group) {
    const par::DistributedDataParallel ddp(*two, group);
    CHECK(same_bits(two->bias->detach(), want.bias->detach()));
  });
}
