// Several calls of parallelize for parts of one model. Ranks are threads.
#include <mutex>
#include <string>
#include <vector>

#include <fmt/format.h>

#include "tests/support/groups.h"

namespace par = ls::parallel;
namespace nn = ls::nn;

namespace {

struct Pair : nn::Module {
  nn::Linear& up = add<nn::Linear>("up", 8, 16, nn::LinearOptions{.bias = false});
  nn::Linear& down = add<nn::Linear>("down", 16, 8, nn::LinearOptions{.bias = false});
  ls::Tensor forward(const ls::Tensor& x) const override { return down(ls::gelu(up(x))); }
};
struct Single : nn::Module {
  nn::Linear& only = add<nn::Linear>("only", 8, 8, nn::LinearOptions{.bias = false});
  ls::Tensor forward(const ls::Tensor& x) const override { return ls::tanh(only(x)); }
};
// Weights of the neighbours b and c have the same name in their modules.
struct Parts : nn::Module {
  Pair& a = add<Pair>("a");
  Single &b = add<Single>("b"), &c = add<Single>("c");
  ls::Tensor forward(const ls::Tensor& x) const override { return c(b(x + a(x))); }
};

const par::ParallelPlan kPair = {{"up", par::ColwiseParallel{}}, {"down", par::RowwiseParallel{}}},
                        kSingle = {{"only", par::ColwiseParallel{.gather_output = true}}};

struct Result {
  std::vector<double> numbers;
  std::uint64_t hash = 0, file = 0;  // of the model, and of its checkpoint
};

template <class Run>
Result train(Run& run, const Parts& model, int first, int rows) {
  ls::optim::SGD optimizer(run.parameters(), {.lr = 0.1});
  Result result;
  for (int step = 0; step < 3; ++step) {
    const ls::Tensor x = (ls::arange(32) % (5 + step)).to(ls::kFloat32).reshape({4, 8}).narrow(0, first, rows);
    optimizer.zero_grad();
    result.numbers.push_back(
        run.backward(x, x, [&](const ls::Tensor& in, const ls::Tensor& y) { return nn::mse_loss(model(in), y); })
            .template item<double>());
    result.numbers.push_back(run.clip_grad_norm_(0.1));
    optimizer.step();
  }
  run.gathered([&] { result.hash = nn::parameter_hash(model); });
  par::save_checkpoint("calls.safetensors", {.model = &run, .optimizer = &optimizer});
  result.file = nn::parameter_hash(ls::load("calls.safetensors"));
  return result;
}

Result train_on(int dp, int tp) {
  Result result;
  std::mutex mutex;
  with_threads("local", dp * tp, [&](const Group& group) {
    ls::manual_seed(3);
    const par::DeviceMesh mesh(group, {{"dp", dp}, {"tp", tp}});
    Parts model;
    par::parallelize(model.a, mesh["tp"], {.tensor_slices = 4, .plan = kPair});
    par::parallelize(model.b, mesh["tp"], {.tensor_slices = 2, .plan = kSingle});
    par::parallelize(model.c, mesh["tp"], {.tensor_slices = 2, .plan = kSingle});
    Result own;
    if (dp == 1) {
      par::GradientAccumulation run(model, {.micro_batches = 2});
      own = train(run, model, 0, 4);
    } else {
      par::DistributedDataParallel run(model, mesh["dp"].group());
      own = train(run, model, 2 * mesh["dp"].rank(), 2);
    }
    const std::lock_guard lock(mutex);
    if (result.numbers.empty()) result = own;
    CHECK(result.numbers == own.numbers);
    CHECK(result.hash == own.hash);
  });
  return result;
}

}  // namespace

TEST_CASE("parts of a model that are cut one by one along the same axis, into different numbers of slices") {
  const Result want = train_on(1, 1);
  for (const int dp : {1, 2}) {
    const Result got = train_on(dp, 2);
    CAPTURE(dp);
    CHECK(got.numbers == want.numbers);
    CHECK(got.hash == want.hash);
    CHECK(got.file == want.file);
  }
}

TEST_CASE("parts of a model that are cut over different ranks are refused") {
  with_threads("local", 4, [](const Group& group) {
    const par::DeviceMesh mesh(group, {{"ep", 2}, {"tp", 2}});
    Parts model;
    par::parallelize(model.a, mesh["tp"], {.plan = kPair});
    par::parallelize(model.b, mesh["ep"], {.plan = kSingle});
    const int tp = group->rank() / 2 * 2, ep = group->rank() % 2;
    const std::string want = fmt::format(
        ": parallelize has cut one part of the model over the ranks {}, {}, and another one over the ranks {}, {}; "
        "pass "
        "the same axis to all calls of parallelize, or several axes as one: mesh.flatten({{\"dp\", \"tp\"}})",
        tp, tp + 1, ep, ep + 2);
    CHECK_THROWS_WITH_AS(par::GradientAccumulation{model}, doctest::Contains(want.c_str()), ls::InvalidArgument);
    const auto alone = group->split(group->rank());
    CHECK_THROWS_WITH_AS(par::DistributedDataParallel(model, alone), doctest::Contains(want.c_str()),
                         ls::InvalidArgument);
    CHECK_THROWS_WITH_AS(par::ShardedDataParallel(model, alone), doctest::Contains(want.c_str()), ls::InvalidArgument);
  });
}

TEST_CASE("one sample without a batch dimension, with one or several slices on a rank") {
  const auto gradient = [](const Group& group) {
    Pair model;
    for (nn::Parameter* const each : {&model.up.weight, &model.down.weight}) {
      const ls::Tensor& t = each->master();
      each->set_master(ls::sin(ls::arange(t.numel()).to(ls::kFloat32)).reshape(t.shape()).requires_grad_());
    }
    par::parallelize(model, par::DeviceMesh(group, {{"tp", group ? group->size() : 1}}),
                     {.tensor_slices = 4, .plan = kPair});
    const ls::Tensor x = ls::ones({8}).requires_grad_();
    model(x).sum().backward();
    return x.grad().to_vector<float>();
  };
  const std::vector<float> want = gradient(nullptr);
  for (const int t : {2, 4}) {
    with_threads("local", t, [&](const Group& group) { CHECK(gradient(group) == want); });
  }
}
