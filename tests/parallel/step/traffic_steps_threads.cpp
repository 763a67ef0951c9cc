// What counts as one step in the traffic counters (TrafficStats), in every mode.
#include <stdexcept>

#include "tests/parallel/model_parallel/tensor_training.h"

using namespace tensor_training;

namespace {

// The traffic of `body` is all that step_links() has.
template <class Run, class Body>
void check_step(const std::string& form, Run& run, const Body& body) {
  const std::int64_t before = run.traffic().bytes();
  body();
  std::int64_t of_step = 0;
  for (const par::LinkTraffic& link : run.traffic().step_links()) of_step += link.bytes;
  CAPTURE(form);
  CHECK(of_step > 0);
  CHECK(of_step == run.traffic().bytes() - before);
}

// `x` is this rank's micro-batch.
template <class Run>
void check_steps(Run& run, const ls::Tensor& x, bool is_sharded = false) {
  const auto loss = [&](const ls::Tensor& in, const ls::Tensor&) { return run.module()(in).square().mean(); };
  const auto own_step = [&] { run.backward(x, x, loss); };
  const auto user_step = [&] { run(x).square().mean().backward(); };
  const auto failed_step = [&] {
    run.backward(x, x, [&](const ls::Tensor& in, const ls::Tensor&) -> ls::Tensor {
      run.module()(in);
      throw std::runtime_error("no more input");
    });
  };
  const auto failed_backward = [&] {
    const ls::Tensor of_all = run(x).mean();
    of_all.register_hook([](const ls::Tensor&) -> ls::Tensor { throw std::runtime_error("no more input"); });
    of_all.backward();
  };
  const auto check_failed_step = [&] { CHECK(contains(error_of<std::exception>(failed_step), "no more input")); };
  for (int repeat = 0; repeat < 2; ++repeat) {
    check_step("backward(x, y, loss_fn)", run, own_step);
    check_step("loss.backward()", run, user_step);
    check_step("two forwards", run, [&] {
      const ls::Tensor first = run(x).mean();
      (first + run(x).square().mean()).backward();
    });
    if (!is_sharded) {
      const ls::Tensor first = run(x).mean(), second = run(x).mean();
      first.backward();
      check_step("a second backward", run, [&] { second.backward(); });
    }
    check_step("no_sync", run, [&] {
      {
        const auto guard = run.no_sync();
        own_step();
        user_step();
      }
      own_step();
    });
    check_step("loss.backward() after no_sync", run, [&] {
      {
        const auto guard = run.no_sync();
        user_step();
      }
      user_step();
    });
    check_step("evaluation after a step", run, [&] {
      user_step();
      run.evaluate(x, x, loss);
      run.clip_grad_norm_(1.0);
      const ls::NoGradGuard no_grad;
      run(x);
    });
    check_step("evaluation in a step", run, [&] {
      {
        const auto guard = run.no_sync();
        own_step();
      }
      run.evaluate(x, x, loss);
      own_step();
    });
    check_failed_step();
    check_step("after a failed step", run, own_step);
    {
      const auto guard = run.no_sync();
      own_step();
      check_failed_step();
    }
    check_step("after a failed step in no_sync", run, user_step);
    CHECK(contains(error_of<std::exception>(failed_backward), "no more input"));
    check_step("after a failed backward", run, user_step);
  }
  const std::int64_t steps = run.traffic().steps();
  own_step();
  CHECK(run.traffic().steps() == steps + 1);
}

void check_mesh(const std::vector<par::MeshAxis>& axes) {
  int ranks = 1, blocks = 1, micro_batches = 1;
  bool is_sharded = false;
  std::string text;
  for (const par::MeshAxis& axis : axes) {
    ranks *= axis.size;
    if (axis.name == "cp") blocks = axis.size;
    is_sharded = is_sharded || axis.name == "fsdp";
    if (axis.name == "dp" || axis.name == "fsdp") micro_batches = axis.size;
    text += fmt::format("{} {} ", axis.name, axis.size);
  }
  with_threads("local", ranks, [&](const Group& group) {
    CAPTURE(text);
    ls::manual_seed(3);
    const par::DeviceMesh mesh(group, axes);
    const ModelOptions options{};
    Model model(options);
    par::Parallel run(model, mesh,
                      {.partition = {.micro_batches = micro_batches, .tensor_slices = 4, .sequence_blocks = blocks},
                       .plan = plan_of(options)});
    const ls::Tensor ids = (ls::arange(2 * kTime) % kVocabulary).reshape({2, kTime});
    check_steps(run, run.split_sequence({ids})[0], is_sharded);
  });
}

}  // namespace

TEST_CASE("the traffic of a step is that of all axes since its first forward") {
  check_mesh({{"tp", 2}});               // GradientAccumulation
  check_mesh({{"dp", 2}, {"tp", 2}});    // DistributedDataParallel
  check_mesh({{"fsdp", 2}, {"tp", 2}});  // ShardedDataParallel
  check_mesh({{"cp", 2}});               // the axis is the mode's group
  check_mesh({{"cp", 2}, {"tp", 2}});
  check_mesh({{"fsdp", 2}, {"cp", 2}});
}

TEST_CASE("the traffic of a step is that of all devices since its first forward") {
  ls::manual_seed(3);
  Model model(ModelOptions{});
  par::DataParallel run(model, {"cpu:0", "cpu:1"});
  check_steps(run, (ls::arange(2 * kTime) % kVocabulary).reshape({2, kTime}));
}

TEST_CASE("the traffic of a step is that of all stages since its first forward") {
  with_threads("local", 2, [](const Group& group) {
    const par::DeviceMesh mesh(group, {{"pp", 2}});
    nn::Sequential model(nn::Linear(4, 8), nn::Linear(8, 4));
    par::Pipeline run(model, mesh["pp"], {.micro_batches_per_rank = 2});
    const auto step = [&] {
      run.backward(ls::ones({4, 4}), ls::ones({4, 4}),
                   [&](const ls::Tensor& x, const ls::Tensor& y) { return nn::mse_loss(run.module()(x), y); });
    };
    for (int repeat = 0; repeat < 2; ++repeat) {
      check_step("backward(x, y, loss_fn)", run, step);
      check_step("no_sync", run, [&] {
        {
          const auto guard = run.no_sync();
          step();
        }
        step();
      });
    }
  });
}

TEST_CASE("several models with the same counters have one step in one backward") {
  with_threads("local", 2, [](const Group& group) {
    const par::DeviceMesh mesh(group, {{"tp", 2}});
    const ModelOptions options{};
    Model first(options), second(options);
    for (Model* each : {&first, &second}) par::parallelize(*each, mesh["tp"], {.plan = plan_of(options)});
    par::GradientAccumulation a(first), b(second);
    const ls::Tensor ids = (ls::arange(2 * kTime) % kVocabulary).reshape({2, kTime});
    for (int step = 1; step <= 2; ++step) {
      check_step("two models", a, [&] { (a(ids).mean() + b(ids).mean()).backward(); });
      CHECK(a.traffic().steps() == step);
    }
  });
}
