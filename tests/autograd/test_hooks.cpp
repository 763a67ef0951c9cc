// Hooks on tensors, on leaves, and at the beginning and the end of backward.
#include "lockstep/autograd/history_internal.h"
#include "tests/support/testing.h"

namespace {
using Doubles = std::vector<double>;
ls::Tensor leaf(std::initializer_list<double> values) { return ls::tensor(values, {.requires_grad = true}); }
const ls::Tensor none;
}  // namespace

TEST_CASE("a hook gets the complete gradient of a leaf or of a result, once in each backward") {
  const ls::Tensor x = leaf({2});
  const ls::Tensor y = x * 3;
  Doubles of_x, of_y;
  x.register_hook([&](const ls::Tensor& g) { return of_x.push_back(g.item<double>()), none; });
  y.register_hook([&](const ls::Tensor& g) { return of_y.push_back(g.item<double>()), none; });
  (y * y + y).backward();
  CHECK(of_y == Doubles{13});
  CHECK(of_x == Doubles{39});
  (x * x).backward();
  CHECK(of_x == Doubles{39, 4});  // this backward's gradient, not the sum
  CHECK(x.grad().item<float>() == 43);
}

TEST_CASE("the tensor that a hook returns replaces the gradient; several hooks run in order") {
  const ls::Tensor x = leaf({1});
  x.register_hook([](const ls::Tensor& g) { return g * 10; });
  x.register_hook([](const ls::Tensor& g) { return g + 1; });
  const ls::Tensor y = x * 2;
  y.register_hook([](const ls::Tensor& g) { return g * 5; });
  (y * 1).backward();
  CHECK(x.grad().item<float>() == 101);
}

TEST_CASE("a removed hook does not run, and its handle may outlive the tensor") {
  int runs = 0;
  ls::HookHandle first, of_result;
  {
    const ls::Tensor x = leaf({1});
    first = x.register_hook([&](const ls::Tensor&) { return ++runs, none; });
    ls::HookHandle second = x.register_hook([&](const ls::Tensor&) { return runs += 10, none; });
    const ls::Tensor y = x * 2;
    of_result = y.register_hook([&](const ls::Tensor&) { return runs += 100, none; });
    first.remove();
    first.remove();
    y.backward({.retain_graph = true});
    CHECK(runs == 110);
    of_result.remove();
    y.backward();
    CHECK(runs == 120);
    first = x.register_hook([](const ls::Tensor&) { return none; });
  }
  first.remove();
}

TEST_CASE("a hook that returns another shape is an error") {
  const ls::Tensor x = leaf({1});
  x.register_hook([](const ls::Tensor&) { return ls::ones({3}); });
  CHECK(contains(error_of([&] { (x * 2).backward(); }),
                 "hook: it returned (3) f32 cpu for a gradient that is (1) f32 cpu"));
}

TEST_CASE("a hook on a tensor without gradient is refused") {
  CHECK(contains(error_of([] { ls::ones({1}).register_hook([](const ls::Tensor&) { return none; }); }),
                 "does not require grad"));
}

TEST_CASE("hooks run in autograd::grad too") {
  const ls::Tensor x = leaf({1});
  x.register_hook([](const ls::Tensor& g) { return g * 7; });
  CHECK(ls::autograd::grad(x * 2, x).item<float>() == 14);
}

TEST_CASE("a leaf hook runs once per backward, when the leaf's gradient is complete") {
  const ls::Tensor x = leaf({2}), w = leaf({5});
  Doubles seen;
  ls::HookHandle handle =
      ls::autograd::register_leaf_hook(x, [&](ls::autograd::Run&) { seen.push_back(x.grad().item<double>()); });
  (x * w + x * x + x).backward();
  CHECK(seen == Doubles{10});
  (w * 2).backward();
  CHECK(seen.size() == 1);  // the hook did not run
  (x * 1).backward();
  CHECK(seen == Doubles{10, 11});
  handle.remove();
  (x * 1).backward();
  CHECK(seen.size() == 2);
}

TEST_CASE("callbacks at the end of backward run after all leaf hooks, in the order they were added") {
  const ls::Tensor a = leaf({1}), b = leaf({1}), c = leaf({1});
  std::string order;
  for (const auto& [t, name] : {std::pair{a, 'a'}, {b, 'b'}, {c, 'c'}}) {
    ls::autograd::register_leaf_hook(t, [&order, name = name](ls::autograd::Run& run) {
      order += name;
      run.at_end([&order, name] { order += static_cast<char>(name - 'a' + 'A'); });
    });
  }
  ((a * b) * c).backward();
  REQUIRE(order.size() == 6);
  const std::string upper = order.substr(3);
  CHECK(upper.find_first_of("abc") == std::string::npos);
  for (std::size_t i = 0; i < 3; ++i) CHECK(upper[i] == order[i] - 'a' + 'A');
}

TEST_CASE("leaf hooks are refused on results and do not run in autograd::grad") {
  const ls::Tensor x = leaf({1});
  CHECK(contains(error_of([&] { ls::autograd::register_leaf_hook(x * 2, [](ls::autograd::Run&) {}); }),
                 "is not a leaf that requires grad"));
  int runs = 0;
  ls::autograd::register_leaf_hook(x, [&](ls::autograd::Run&) { ++runs; });
  ls::autograd::grad(x * 2, x);
  CHECK(runs == 0);
}

TEST_CASE("run hooks are called before everything else in each backward that includes the result") {
  const ls::Tensor x = leaf({2}), other = leaf({3});
  const ls::Tensor y = x * 3;
  std::string order;
  x.register_hook([&](const ls::Tensor&) { return order += 'x', none; });
  y.register_hook([&](const ls::Tensor&) { return order += 'y', none; });
  ls::autograd::register_run_hook(y, [&](ls::autograd::Run& run) {
    order += run.accumulates() ? 'b' : 'g';
    run.at_end([&] { order += 'e'; });
    run.at_error([&](const std::exception& error) { order += contains(error.what(), "stop here") ? '!' : '?'; });
  });
  const ls::Tensor z = y * other;
  z.register_hook([&](const ls::Tensor&) { return order += 'z', none; });
  z.backward({.retain_graph = true});
  CHECK(order == "bzyxe");
  order.clear();
  ls::autograd::grad(z, other, {.retain_graph = true});
  (other * 2).backward();
  CHECK(order == "gze");
  order.clear();
  const ls::Tensor loss = z * 2;
  loss.register_hook([](const ls::Tensor&) -> ls::Tensor { throw ls::InvalidArgument("stop here"); });
  CHECK(contains(error_of([&] { loss.backward(); }), "stop here"));
  CHECK(order == "b!");
  CHECK(contains(error_of([&] { ls::autograd::register_run_hook(x, [](ls::autograd::Run&) {}); }),
                 "is not the result of an operation"));
}

TEST_CASE("an exception in a hook passes through backward, and the next backward works") {
  const ls::Tensor x = leaf({2});
  ls::HookHandle handle =
      x.register_hook([](const ls::Tensor&) -> ls::Tensor { throw ls::InvalidArgument("stop here"); });
  CHECK(contains(error_of([&] { (x * 2).backward(); }), "stop here"));
  handle.remove();
  (x * 2).backward();
  CHECK(x.grad().item<float>() == 2);
}

TEST_CASE(
    "a backward inside a hook, through another graph or the same leaf, completes before the outer one continues") {
  const ls::Tensor x = leaf({2}), other = leaf({3});
  const ls::Tensor y = x * 3;
  double inner = 0;
  y.register_hook([&](const ls::Tensor&) {
    const ls::EnableGradGuard recording;
    (other * other).backward();
    inner = other.grad().item<double>();
    return none;
  });
  (y * y).backward();
  CHECK(inner == 6);
  CHECK(x.grad().item<float>() == 36);
  const ls::Tensor z = x * 5;
  x.set_grad({});
  z.register_hook([&](const ls::Tensor&) {
    const ls::EnableGradGuard recording;
    (x * 100).backward();
    return none;
  });
  (z * 1).backward();
  CHECK(x.grad().item<float>() == 105);
}

TEST_CASE("a hook may remove itself or add another while it runs") {
  const ls::Tensor x = leaf({1});
  int runs = 0;
  ls::HookHandle self;
  self = x.register_hook([&](const ls::Tensor&) {
    ++runs;
    x.register_hook([&](const ls::Tensor&) { return runs += 100, none; });
    return none;
  });
  (x * 1).backward();
  CHECK((runs == 1 || runs == 101));
  runs = 0;
  self.remove();
  (x * 1).backward();
  CHECK(runs == 100);
}
