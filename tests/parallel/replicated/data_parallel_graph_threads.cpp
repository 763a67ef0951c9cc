// Backward of DataParallel's output: every replica has its own graph and thread.
#include <atomic>
#include <condition_variable>
#include <mutex>
#include <optional>
#include <set>
#include <thread>

#include "tests/support/testing.h"

namespace {

using ls::parallel::DataParallel;

struct Net : ls::nn::Module {
  ls::nn::Linear& fc1 = add<ls::nn::Linear>("fc1", 4, 8);
  ls::nn::Linear& fc2 = add<ls::nn::Linear>("fc2", 8, 2);
  ls::Tensor forward(const ls::Tensor& x) const override { return fc2(ls::relu(fc1(x))); }
};

// A module that applies a function to its parameter and x.
template <class F>
struct Lambda : ls::nn::Module {
  ls::nn::Parameter& weight = add_parameter("weight", numbers({4, 4}, {}, 7));
  F function;
  explicit Lambda(F function) : function(std::move(function)) {}
  ls::Tensor forward(const ls::Tensor& x) const override { return function(x, *weight); }
};

// The identity, which calls `backward` in a replica's backward pass.
template <class F>
ls::Tensor on_the_way_back(const ls::Tensor& x, F backward) {
  return ls::autograd::record("probe", x.detach(), {x}, [backward](const ls::Tensor& grad, const ls::autograd::Needs&) {
    backward();
    return ls::autograd::Gradients{grad};
  });
}

std::vector<ls::Device> devices(int count) {
  std::vector<ls::Device> out;
  for (int i = 0; i < count; ++i) out.emplace_back("cpu:" + std::to_string(i));
  return out;
}

std::vector<ls::Tensor> gradients(const ls::nn::Module& model) {
  std::vector<ls::Tensor> grads;
  for (const auto& p : model.parameters()) grads.push_back(p->grad().defined() ? p->grad().clone() : ls::Tensor());
  return grads;
}

void check_same(const std::vector<ls::Tensor>& have, const std::vector<ls::Tensor>& want) {
  REQUIRE(have.size() == want.size());
  for (std::size_t i = 0; i < have.size(); ++i) check_close(have[i], want[i], "gradient", {1e-5, 1e-6});
}

const ls::Tensor kX = numbers({8, 4}), kY = numbers({8, 2}, {}, 2);

}  // namespace

TEST_CASE("replicas run backward at the same time, each on its own thread") {
  std::mutex mutex;
  std::condition_variable wake;
  std::set<std::thread::id> threads;
  bool met = true;
  Lambda model([&](const ls::Tensor& x, const ls::Tensor& w) {
    return on_the_way_back(ls::matmul(x, w), [&] {
      std::unique_lock lock(mutex);
      threads.insert(std::this_thread::get_id());
      wake.notify_all();
      met = met && wake.wait_for(lock, std::chrono::seconds(60), [&] { return threads.size() == 3; });
    });
  });
  DataParallel parallel(model, devices(3));
  ls::sum(parallel(kX)).backward();
  CHECK(met);
  CHECK(threads.contains(std::this_thread::get_id()));  // the first replica's is the caller's
}

TEST_CASE("a retained graph runs backward again with the same result; for a freed graph this is an error") {
  Net model;
  DataParallel parallel(model, devices(3));
  const ls::Tensor loss = ls::nn::MSELoss()(parallel(kX), kY);
  loss.backward({.retain_graph = true});
  const auto first = gradients(model);
  model.zero_grad();
  loss.backward();
  const auto second = gradients(model);
  for (std::size_t i = 0; i < first.size(); ++i) CHECK(same_bits(first[i], second[i]));
  CHECK(contains(error_of([&] { loss.backward(); }), "already run backward"));
}

TEST_CASE("without retain_graph, backward frees what the replicas saved even if the output lives on") {
  const auto token = std::make_shared<int>(1);
  Lambda model(
      [&](const ls::Tensor& x, const ls::Tensor& w) { return on_the_way_back(ls::matmul(x, w), [token = token] {}); });
  DataParallel parallel(model, devices(2));
  const long owners = token.use_count();
  const ls::Tensor out = parallel(kX);
  CHECK(token.use_count() == owners + 2);
  ls::sum(out).backward({.retain_graph = true});
  CHECK(token.use_count() == owners + 2);
  ls::sum(out).backward();
  CHECK(token.use_count() == owners);
}

TEST_CASE("two forwards before one backward each keep their own gradients") {
  Net model;
  DataParallel parallel(model, devices(3));
  const ls::Tensor other = numbers({5, 4}, {}, 9);
  (ls::sum(model(kX) * kY) + ls::sum(model(other))).backward();
  const auto want = gradients(model);
  model.zero_grad();
  const ls::Tensor a = parallel(kX), b = parallel(other);
  (ls::sum(a * kY) + ls::sum(b)).backward();
  check_same(gradients(model), want);
}

TEST_CASE("an input that requires grad gets the gradients of all its rows, whichever device it was on") {
  Net model;
  DataParallel parallel(model, devices(3));
  for (const bool leaf : {true, false}) {
    const ls::Tensor base = numbers({8, 4}, {.requires_grad = true}), like = numbers({8, 4}, {.requires_grad = true});
    ls::nn::MSELoss()(model(leaf ? like : like * 2.0), kY).backward();
    const auto want = gradients(model);
    model.zero_grad();
    ls::nn::MSELoss()(parallel(leaf ? base : base * 2.0), kY).backward();
    check_close(base.grad(), like.grad(), "input", {1e-5, 1e-6});
    check_same(gradients(model), want);
    model.zero_grad();
  }
  const ls::Tensor x = numbers({8, 4}, {.requires_grad = true});
  const auto only = ls::autograd::grad(ls::sum(parallel(x)), x);  // no other gradient changes
  check_close(only, ls::autograd::grad(ls::sum(model(x)), x), "grad", {1e-5, 1e-6});
  CHECK(!model.fc1.weight->grad().defined());
}

TEST_CASE("rows that a replica did not use have zero gradients, and a parameter that no replica used has none") {
  struct Partial : ls::nn::Module {
    ls::nn::Parameter& some = add_parameter("some", ls::ones({4}));
    ls::nn::Parameter& none = add_parameter("none", ls::ones({4}));
    ls::nn::Parameter& frozen = add_parameter("frozen", ls::ones({4}));
    ls::Tensor forward(const ls::Tensor& x) const override {
      if (x.select(0, 0).select(0, 0).item<double>() == 0) return x.detach() * *frozen;
      return x * *some * *frozen;
    }
  };
  Partial model;
  model.frozen->requires_grad_(false);
  DataParallel parallel(model, devices(3));
  ls::Tensor x = ls::tensor({{1.0, 2.0, 3.0, 4.0}, {0.0, 1.0, 1.0, 1.0}, {5.0, 6.0, 7.0, 8.0}});
  x.requires_grad_();
  ls::sum(parallel(x)).backward();
  CHECK(ls::equal(x.grad(), ls::tensor({{1.0, 1.0, 1.0, 1.0}, {0.0, 0.0, 0.0, 0.0}, {1.0, 1.0, 1.0, 1.0}})));
  CHECK(ls::equal(model.some->grad(), ls::tensor({6.0, 8.0, 10.0, 12.0})));
  CHECK(!model.none->grad().defined());
  CHECK(!model.frozen->grad().defined());
  CHECK(!parallel(ls::zeros({3, 4})).requires_grad());
  const ls::NoGradGuard no_grad;
  CHECK(!parallel(ls::ones({3, 4})).requires_grad());
}

TEST_CASE("a tensor that a module uses without registering it gets its gradient from all replicas") {
  const std::vector<ls::Device> here(4, ls::Device("cpu"));  // four replicas on the tensors' own device
  const ls::Tensor scale = numbers({4}, {.requires_grad = true}, 5), shift = numbers({4}, {.requires_grad = true}, 6);
  ls::Tensor shifted;
  Lambda model([&](const ls::Tensor& x, const ls::Tensor& w) {
    return ls::relu(ls::matmul(x, w) * scale + shifted) * shifted * scale;
  });
  const auto run = [&](auto& forward) {
    shifted = ls::exp(shift);
    (ls::sum(forward(kX)) + ls::sum(shifted)).backward();
    const std::vector<ls::Tensor> got = {scale.grad(), shift.grad(), model.weight->grad()};
    for (const ls::Tensor& each : {scale, shift, *model.weight}) each.set_grad({});
    return got;
  };
  const auto want = run(model);
  DataParallel parallel(model, here);
  const auto have = run(parallel), again = run(parallel);
  check_same(have, want);
  for (std::size_t i = 0; i < have.size(); ++i) CHECK(same_bits(have[i], again[i]));
  for (const ls::Tensor& one : {scale, shift}) {  // alone
    const auto gradient = [&](auto& forward) {
      shifted = ls::exp(shift);
      return ls::autograd::grad(ls::sum(forward(kX)), one);
    };
    check_close(gradient(parallel), gradient(model), "grad", {1e-5, 1e-6});
  }
  const auto verb = [&] {
    parallel.backward(kX, kX, [&](const ls::Tensor& x, const ls::Tensor&) { return ls::sum(model(x)); });
  };
  const std::string error = error_of(verb);
  CHECK(contains(error, "not a parameter of the module"));
  CHECK(contains(error, "(4) f32 cpu"));
  CHECK(contains(error, "add_parameter"));
}

TEST_CASE("a replica may return its input, a parameter or an outside tensor, and backward reaches it") {
  const ls::Tensor outside = numbers({4, 4}, {.requires_grad = true}, 5);
  int which = 0;
  Lambda model([&](const ls::Tensor& x, const ls::Tensor& w) { return which == 0 ? x : which == 1 ? w : outside; });
  DataParallel parallel(model, {"cpu", "cpu"});
  const ls::Tensor x = numbers({8, 4}, {.requires_grad = true});
  for (which = 0; which < 3; ++which) ls::sum(parallel(x)).backward();
  CHECK(ls::equal(x.grad(), ls::ones({8, 4})));
  CHECK(ls::equal(model.weight->grad(), ls::full({4, 4}, 2.0)));
  CHECK(ls::equal(outside.grad(), ls::full({4, 4}, 2.0)));
}

TEST_CASE("an exception in a replica's backward names the replica and its device, and the next step works") {
  std::atomic<bool> fail = true;
  Lambda model([&](const ls::Tensor& x, const ls::Tensor& w) {
    const bool last = x.device() == ls::Device("cpu:1");
    return on_the_way_back(ls::matmul(x, w), [&fail, last] {
      if (fail && last) throw ls::InvalidArgument("seven");
    });
  });
  DataParallel parallel(model, devices(2));
  const std::string error = error_of([&] { ls::sum(parallel(kX)).backward(); });
  CHECK(contains(error, "replica 1 on cpu:1"));
  CHECK(contains(error, "seven"));
  CHECK(!model.weight->grad().defined());
  fail = false;
  ls::sum(parallel(kX)).backward();
  check_close(model.weight->grad(), ls::matmul(kX.t(), ls::ones({8, 4})), "gradient", {1e-5, 1e-6});
}

TEST_CASE("a graph outlives its DataParallel, and runs backward without its threads") {
  Net model;
  ls::nn::MSELoss()(model(kX), kY).backward();
  const auto want = gradients(model);
  model.zero_grad();
  ls::Callback<void()> later;
  {
    std::optional<DataParallel> parallel(std::in_place, model, devices(3));
    later = [out = (*parallel)(kX)] { ls::nn::MSELoss()(out, kY).backward(); };
    parallel.reset();
  }
  later();
  check_same(gradients(model), want);
}

TEST_CASE("graphs of one DataParallel run backward on several threads, and inside a replica") {
  Net model;
  DataParallel parallel(model, devices(2));
  const ls::Tensor weight = *model.fc1.weight;
  const ls::Tensor want = ls::autograd::grad(ls::sum(parallel(kX)), weight);
  std::vector<ls::Tensor> outs, have(4);
  for (std::size_t i = 0; i < have.size(); ++i) outs.push_back(parallel(kX));
  {
    std::vector<std::jthread> threads;
    for (std::size_t i = 0; i < have.size(); ++i)
      threads.emplace_back([&, i] { have[i] = ls::autograd::grad(ls::sum(outs[i]), weight); });
  }
  const ls::Tensor earlier = ls::sum(parallel(kX));
  parallel.backward(kX, kY, [&](const ls::Tensor& x, const ls::Tensor& y) {
    if (x.device() == ls::Device("cpu:1")) have.push_back(ls::autograd::grad(earlier, weight));
    return ls::nn::MSELoss()(model(x), y);
  });
  REQUIRE(have.size() == 5);
  for (const ls::Tensor& each : have) CHECK(same_bits(each, want));
}

TEST_CASE("a parameter that changed after the forward is an error, as on one device") {
  Net model;
  DataParallel parallel(model, devices(2));
  ls::optim::SGD optimizer(model.parameters(), {.lr = 0.1});
  ls::nn::MSELoss()(parallel(kX), kY).backward();
  const ls::Tensor stale = ls::nn::MSELoss()(parallel(kX), kY);
  optimizer.step();
  CHECK(contains(error_of([&] { stale.backward(); }), "changed in place"));
}

TEST_CASE("second derivatives are an error that says so") {
  Net model;
  DataParallel parallel(model, devices(2));
  const std::string error = error_of([&] { ls::sum(parallel(kX)).backward({.create_graph = true}); });
  CHECK(contains(error, "second derivatives"));
}

TEST_CASE("a parameter's hook gets the sum over the replicas, once, in both forms") {
  Net model;
  DataParallel parallel(model, devices(4));
  std::vector<ls::Tensor> seen;
  const auto hook = model.fc1.weight->register_hook([&](const ls::Tensor& grad) {
    seen.push_back(grad.clone());
    return ls::Tensor();
  });
  ls::nn::MSELoss criterion;
  criterion(parallel(kX), kY).backward();
  const ls::Tensor outside = model.fc1.weight->grad().clone();
  parallel.backward(kX, kY, [&](const ls::Tensor& x, const ls::Tensor& y) { return criterion(model(x), y); });
  REQUIRE(seen.size() == 2);
  CHECK(same_bits(seen[0], outside));
  CHECK(same_bits(seen[1], outside));
  CHECK(ls::equal(model.fc1.weight->grad(), outside * 2.0));  // added to the accumulated gradient
}
