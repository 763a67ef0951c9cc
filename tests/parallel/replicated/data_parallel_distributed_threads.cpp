// DataParallel inside DistributedDataParallel: ranks are threads with several devices each.
#include <functional>
#include <memory>

#include "tests/support/groups.h"

namespace {

using ls::parallel::DataParallel;
using ls::parallel::DistributedDataParallel;

constexpr std::int64_t kRows = 16;
const std::vector<ls::Device> kDevices = {"cpu:0", "cpu:1"};

struct Mlp : ls::nn::Module {
  ls::nn::Linear& fc1 = add<ls::nn::Linear>("fc1", 4, 8);
  ls::nn::Linear& fc2 = add<ls::nn::Linear>("fc2", 8, 2);
  ls::nn::Linear& spare = add<ls::nn::Linear>("spare", 8, 2);
  Mlp() {  // threads share the random streams, so initial values are set here
    const ls::NoGradGuard no_grad;
    std::uint32_t salt = 0;
    for (const ls::nn::Parameter& p : parameters()) p->copy_(numbers(p->shape(), {}, ++salt));
  }
  ls::Tensor forward(const ls::Tensor& x) const override { return fc2(ls::relu(fc1(x))); }
};

// A rank's part of the samples.
struct Part {
  ls::Tensor x, y;
  explicit Part(int rank = 0, int ranks = 1)
      : x(numbers({kRows, 4}, {}, 90).narrow(0, rank * kRows / ranks, kRows / ranks)),
        y(numbers({kRows, 2}, {}, 91).narrow(0, rank * kRows / ranks, kRows / ranks)) {}
};

ls::Tensor loss_of(const ls::Tensor& out, const ls::Tensor& y) { return ls::nn::MSELoss()(out, y); }

// The accumulated gradients of four micro-batches, run in sequence.
std::vector<ls::Tensor> accumulated_gradients() {
  Mlp model;
  ls::parallel::GradientAccumulation accumulation(model, {.micro_batches = 4});
  const Part all;
  accumulation.backward(all.x, all.y, [&](const ls::Tensor& x, const ls::Tensor& y) { return loss_of(model(x), y); });
  std::vector<ls::Tensor> grads;
  for (const ls::nn::Parameter& p : model.parameters()) grads.push_back(p->grad());
  return grads;
}

// Checks that step(ddp, dp, part) on two ranks gives the bits of four micro-batches, also the second time.
template <class Step>
void check_bits_of_four_micro_batches(const Step& step) {
  const std::vector<ls::Tensor> want = accumulated_gradients();
  with_group("local", 2, [&](const Group& group) {
    Mlp model;
    DataParallel dp(model, kDevices);
    DistributedDataParallel ddp(model, group);
    const Part part(group->rank(), 2);
    for (int i = 0; i < 2; ++i) {
      model.zero_grad();
      step(ddp, dp, model, part);
      const auto named = model.named_parameters();
      for (std::size_t p = 0; p < named.size(); ++p) {
        INFO(named[p].first);
        const ls::Tensor grad = named[p].second->grad();
        REQUIRE(grad.defined() == want[p].defined());
        if (grad.defined()) CHECK(same_bits(grad, want[p]));
      }
    }
    CHECK(ddp.stats().steps == 2);
    CHECK(ddp.stats().copies == 0);  // sums are computed in the buckets
  });
}

}  // namespace

TEST_CASE("DataParallel's output with a loss outside, on two ranks, gives the bits of four micro-batches") {
  check_bits_of_four_micro_batches(
      [](auto&, DataParallel& dp, Mlp&, const Part& part) { loss_of(dp(part.x), part.y).backward(); });
}

TEST_CASE("DataParallel inside DistributedDataParallel::backward gives the bits of four micro-batches") {
  check_bits_of_four_micro_batches([](DistributedDataParallel& ddp, DataParallel& dp, Mlp&, const Part& part) {
    ddp.backward(part.x, part.y, [&](const ls::Tensor& x, const ls::Tensor& y) { return loss_of(dp(x), y); });
  });
}

TEST_CASE("DataParallel::backward on the model of a DistributedDataParallel gives the bits of four micro-batches") {
  check_bits_of_four_micro_batches([](auto&, DataParallel& dp, Mlp& model, const Part& part) {
    dp.backward(part.x, part.y, [&](const ls::Tensor& x, const ls::Tensor& y) { return loss_of(model(x), y); });
  });
}

TEST_CASE("a module that runs a part of itself on several devices can be distributed") {
  struct Outer : ls::nn::Module {
    Mlp& body = add<Mlp>("body");
    ls::nn::Linear& head = add<ls::nn::Linear>("head", 2, 1);
    mutable DataParallel parallel{body, kDevices};
    ls::Tensor forward(const ls::Tensor& x) const override { return head(parallel(x)); }
  };
  const auto set = [](Outer& model) {
    const ls::NoGradGuard no_grad;
    for (const ls::nn::Parameter& p : model.head.parameters()) p->copy_(numbers(p->shape(), {}, 50));
  };
  Outer alone;
  set(alone);
  const Part all;
  ls::sum(alone.head(alone.body(all.x))).backward();
  with_group("local", 2, [&](const Group& group) {
    Outer model;
    set(model);
    DistributedDataParallel ddp(model, group);
    const Part part(group->rank(), 2);
    ls::sum(ddp(part.x)).backward();
    const auto have = model.named_parameters(), want = alone.named_parameters();
    for (std::size_t p = 0; p < have.size(); ++p) {
      if (want[p].second->grad().defined())
        check_close(have[p].second->grad() * 2.0, want[p].second->grad(), have[p].first, {1e-5, 1e-6});
    }
  });
}

TEST_CASE("a mode inside a replica of DataParallel is refused") {
  with_group("local", 1, [&](const Group& group) {
    struct Inside : ls::nn::Module {
      ls::nn::Linear& fc = add<ls::nn::Linear>("fc", 4, 2);
      std::function<ls::Tensor(const ls::Tensor& x)> run;
      ls::Tensor forward(const ls::Tensor& x) const override { return run(x); }
    };
    const auto check_refused = [](auto make) {
      Inside model;
      DataParallel dp(model, kDevices);
      const auto mode = make(model.fc);
      model.run = [&](const ls::Tensor& x) { return (*mode)(x); };
      CHECK(contains(error_of([&] { dp(Part().x); }), "inside a DataParallel replica"));
      model.run = [&](const ls::Tensor& x) { return make(model.fc)->module()(x); };
      CHECK(contains(error_of([&] { dp(Part().x); }), "inside a DataParallel replica"));
    };
    check_refused([&](ls::nn::Module& fc) { return std::make_unique<DistributedDataParallel>(fc, group); });
    check_refused([&](ls::nn::Module& fc) { return std::make_unique<ls::parallel::GradientAccumulation>(fc); });
  });
}

TEST_CASE("DistributedDataParallel takes several inputs") {
  struct Two : ls::nn::Module {
    ls::nn::Parameter& weight = add_parameter("weight", ls::ones({4}));
    ls::Tensor forward_inputs(const std::vector<ls::Tensor>& inputs) const override {
      return inputs[0] * *weight + inputs[1];
    }
  };
  with_group("local", 2, [&](const Group& group) {
    Two model;
    DistributedDataParallel ddp(model, group);
    const ls::Tensor x = ls::full({3, 4}, group->rank() + 1.0);
    const ls::Tensor out = ddp({x, x});
    CHECK(ls::equal(out, x * 2.0));
    ls::sum(out).backward();
    CHECK(ls::equal(model.weight->grad(), ls::full({4}, 4.5)));
  });
}
