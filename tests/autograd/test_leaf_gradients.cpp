// Gradients of leaves: their own memory, create_graph, set_grad, and leaves frozen after the forward.
#include <functional>

#include "lockstep/autograd/history_internal.h"
#include "tests/support/testing.h"

namespace {

using Doubles = std::vector<double>;
ls::Tensor leaf(std::initializer_list<double> values) { return ls::tensor(values, {.requires_grad = true}); }
Doubles gradient(const ls::Tensor& x) { return x.grad().to_vector<double>(); }

// Collects the warnings of one test.
class Warnings {
 public:
  Warnings() {
    ls::on_warning([this](const std::string& message) { seen.push_back(message); });
  }
  ~Warnings() { ls::on_warning({}); }
  Warnings(const Warnings&) = delete;
  Warnings& operator=(const Warnings&) = delete;
  std::vector<std::string> seen;
};

// Checks that no other tensor shares the gradient's memory, and that each of its elements has its own address.
void check_own_memory(const ls::Tensor& grad, const std::vector<ls::Tensor>& others, const std::string& what) {
  INFO(what);
  REQUIRE(grad.defined());
  CHECK(grad.is_contiguous());
  CHECK(grad.impl().storage->use_count() == 1);
  for (const ls::Tensor& other : others) CHECK(grad.impl().storage != other.impl().storage);
}

using Join = std::function<ls::Tensor(const ls::Tensor&, const ls::Tensor&)>;
// Operations that return the gradient of their result unchanged, as a view of it, or expanded.
const std::vector<std::pair<std::string, Join>>& passing() {
  static const std::vector<std::pair<std::string, Join>> all = {
      {"add", [](const ls::Tensor& a, const ls::Tensor& b) { return a + b; }},
      {"sub", [](const ls::Tensor& a, const ls::Tensor& b) { return a - b; }},
      {"cat",
       [](const ls::Tensor& a, const ls::Tensor& b) {
         return ls::cat({a, b});
       }},
      {"stack",
       [](const ls::Tensor& a, const ls::Tensor& b) {
         return ls::stack({a, b});
       }},
      {"reshape", [](const ls::Tensor& a, const ls::Tensor& b) { return a.reshape({4}) + b.reshape({4}); }},
      {"transpose", [](const ls::Tensor& a, const ls::Tensor& b) { return a.t() + b.t(); }},
      {"clone", [](const ls::Tensor& a, const ls::Tensor& b) { return a.clone() + b.clone(); }},
      {"sum", [](const ls::Tensor& a, const ls::Tensor& b) { return ls::sum(a) + ls::sum(b); }},
      {"mean", [](const ls::Tensor& a, const ls::Tensor& b) { return ls::mean(a, {0}) + ls::mean(b, {0}); }},
      {"itself", [](const ls::Tensor& a, const ls::Tensor& b) { return a + a + b; }}};
  return all;
}

}  // namespace

TEST_CASE("a gradient has its own memory, with and without create_graph") {
  const Warnings warnings;
  for (const bool create_graph : {false, true}) {
    for (const auto& [name, join] : passing()) {
      const ls::Tensor a = numbers({2, 2}, {.requires_grad = true}), b = numbers({2, 2}, {.requires_grad = true}, 2);
      const ls::Tensor y = join(a, b), upstream = ls::ones(y.shape());
      y.backward(upstream, {.create_graph = create_graph});
      const std::string what = name + (create_graph ? " with create_graph" : "");
      check_own_memory(a.grad(), {b.grad(), upstream}, what);
      check_own_memory(b.grad(), {a.grad(), upstream}, what);
      const Doubles before = gradient(b);
      (a * 2).backward(ls::ones({2, 2}));
      CHECK_MESSAGE(gradient(b) == before, what);
      CHECK_MESSAGE(upstream.to_vector<double>() == Doubles(upstream.to_vector<double>().size(), 1), what);
    }
  }
}

TEST_CASE("a leaf that is the root keeps a copy of the given gradient") {
  const Warnings warnings;
  for (const bool create_graph : {false, true}) {
    const ls::Tensor x = leaf({1, 2}), upstream = ls::tensor({3.0, 4.0});
    x.backward(upstream, {.create_graph = create_graph});
    x.backward(upstream, {.create_graph = create_graph});
    CHECK(gradient(x) == Doubles{6, 8});
    CHECK(upstream.to_vector<double>() == Doubles{3, 4});
    const ls::Tensor one = ls::tensor({1.0});
    x.set_grad({});
    x.backward(one.expand({2}), {.create_graph = create_graph});
    check_own_memory(x.grad(), {one}, "expanded root gradient");
  }
}

TEST_CASE("after create_graph a gradient is clipped once and accumulates like any other") {
  const Warnings warnings;
  ls::nn::Linear first(1, 1, {.bias = false}), second(1, 1, {.bias = false});
  const std::vector<ls::nn::Parameter> parameters = {first.weight, second.weight};
  ls::sum(*first.weight + *second.weight).backward(ls::BackwardOptions{.create_graph = true});
  CHECK(ls::nn::clip_grad_norm_(parameters, 0.5) == doctest::Approx(std::sqrt(2.0)));
  for (const ls::nn::Parameter& p : parameters)
    CHECK(p->grad().item<double>() == doctest::Approx(0.5 / std::sqrt(2.0)));
}

TEST_CASE("a copied gradient of create_graph can be differentiated: of a sum, and accumulated") {
  const Warnings warnings;
  const ls::Tensor a = leaf({3}), b = leaf({5}), y = (a + b) * (a + b);
  y.backward(ls::BackwardOptions{.create_graph = true});
  y.backward(ls::BackwardOptions{.create_graph = true});
  CHECK(gradient(a) == Doubles{32});
  CHECK(ls::autograd::grad(ls::sum(a.grad() * b.grad()), a).item<float>() == 2 * 32 * 4);
  a.set_grad({}), b.set_grad({});
}

TEST_CASE("create_graph warns once of the reference cycle, and clearing the gradient ends it") {
  const Warnings warnings;
  const std::int64_t before = ls::allocator_stats().allocated_bytes;
  for (int i = 0; i < 3; ++i) {
    const ls::Tensor x = numbers({1000}, {.requires_grad = true});
    ls::sum(x * x).backward();
    CHECK(warnings.seen.size() == static_cast<std::size_t>(std::min(i, 1)));
    ls::sum(x * x).backward(ls::BackwardOptions{.create_graph = true});
    x.set_grad({});
  }
  REQUIRE(warnings.seen.size() == 1);
  CHECK(contains(warnings.seen[0], "create_graph"));
  CHECK(contains(warnings.seen[0], "reference cycle"));
  CHECK(contains(warnings.seen[0], "autograd::grad"));
  CHECK(ls::allocator_stats().allocated_bytes == before);
}

TEST_CASE("without create_graph a gradient has no history, even if a hook recorded one") {
  const ls::Tensor x = leaf({3}), w = leaf({2});
  x.register_hook([&](const ls::Tensor& g) {
    const ls::EnableGradGuard recording;
    return g * w;
  });
  (x * 1).backward();
  CHECK(gradient(x) == Doubles{2});
  CHECK(!x.grad().requires_grad());
}

TEST_CASE("set_grad copies an expanded gradient, so that the next backward adds to each element") {
  const ls::Tensor x = leaf({1, 2, 3}), one = ls::tensor({1.0});
  x.set_grad(one.expand({3}));
  (x * ls::tensor({10.0, 20.0, 30.0})).backward(ls::ones({3}));
  CHECK(gradient(x) == Doubles{11, 21, 31});
  CHECK(one.item<float>() == 1);
  const ls::Tensor rows = numbers({2, 3}, {.requires_grad = true});
  rows.set_grad(ls::tensor({1.0, 2.0, 3.0}).unsqueeze(0).expand({2, 3}));
  ls::sum(rows).backward();
  CHECK(gradient(rows) == Doubles{2, 3, 4, 2, 3, 4});
  ls::nn::Linear layer(1, 3, {.bias = false});
  layer.weight->set_grad(ls::tensor({2.0}).expand({3, 1}));
  ls::nn::clip_grad_norm_(layer.parameters(), 1);
  CHECK(gradient(*layer.weight)[2] == doctest::Approx(1 / std::sqrt(3.0)));
}

TEST_CASE("set_grad copies a gradient that overlaps its tensor, so that backward does not change the tensor") {
  const ls::Tensor flat = ls::tensor({1.0, 2.0, 3.0});
  const ls::Tensor x = flat.narrow(0, 0, 2).requires_grad_();
  for (const ls::Tensor& grad : {x, x.detach(), flat.narrow(0, 1, 2)}) {
    x.set_grad(grad);
    const Doubles was = grad.detach().to_vector<double>();
    (x * 10).backward(ls::ones({2}));
    CHECK(gradient(x) == Doubles{was[0] + 10, was[1] + 10});
    CHECK(flat.to_vector<double>() == Doubles{1, 2, 3});
    CHECK(!x.grad().requires_grad());
  }
}

TEST_CASE("set_grad keeps any other gradient itself: backward adds to it in place, as in PyTorch") {
  const ls::Tensor memory = ls::zeros({2, 2}), x = leaf({1, 2}), grad = memory[1];
  x.set_grad(grad);
  CHECK(x.grad().raw_data() == grad.raw_data());
  (x * 3).backward(ls::ones({2}));
  CHECK(memory.to_vector<double>() == Doubles{0, 0, 3, 3});
  const ls::Tensor square = numbers({2, 2}, {.requires_grad = true}), by_columns = memory.t();
  square.set_grad(by_columns);
  ls::sum(square).backward();
  CHECK(memory.to_vector<double>() == Doubles{1, 1, 4, 4});
}

TEST_CASE("set_grad refuses another shape, dtype or device, and names the fix") {
  const ls::Tensor x = leaf({1, 2});
  for (const ls::Tensor& wrong :
       {ls::ones({3}), ls::ones({2, 1}), ls::ones({2}, {.dtype = ls::kFloat64}), ls::ones({2}, {.device = "cpu:1"})}) {
    const std::string text = error_of([&] { x.set_grad(wrong); });
    CHECK(text.starts_with("set_grad: the gradient is"));
    CHECK(contains(text, "the tensor (2) f32 cpu"));
    CHECK(contains(text, "reshape"));
    CHECK(contains(text, ".to("));
    CHECK(!x.grad().defined());
  }
}

TEST_CASE("a leaf that is frozen after the forward gets no gradient; the other leaves get theirs") {
  const ls::Tensor x = leaf({2}), w = leaf({3});
  const ls::Tensor y = x * w + x;
  x.requires_grad_(false);
  y.backward({.retain_graph = true});
  CHECK(!x.grad().defined());
  CHECK(gradient(w) == Doubles{2});
  x.requires_grad_();
  y.backward();
  CHECK(gradient(x) == Doubles{4});
  CHECK(gradient(w) == Doubles{4});
}

TEST_CASE("freezing keeps the existing gradient, in a bucket or not, and the bucket is used again afterwards") {
  for (const bool in_bucket : {false, true}) {
    const ls::Tensor x = numbers({3, 4}, {.requires_grad = true}), in = numbers({2, 4}, {}, 2),
                     view = ls::zeros({3, 4});
    if (in_bucket) ls::autograd::set_gradient_view(x, view);
    ls::sum(ls::linear(in, x)).backward();
    const Doubles once = gradient(x);
    for (const bool cleared : {false, true}) {
      if (cleared) x.set_grad({});
      const ls::Tensor loss = ls::sum(ls::linear(in, x));
      x.requires_grad_(false);
      loss.backward();
      x.requires_grad_();
      CHECK(x.grad().defined() == !cleared);
      if (!cleared) CHECK(gradient(x) == once);
    }
    ls::sum(ls::linear(in, x)).backward();
    CHECK(gradient(x) == once);
    CHECK((x.grad().raw_data() == view.raw_data()) == in_bucket);
  }
}

TEST_CASE("a leaf that a hook freezes during backward gets no gradient") {
  const ls::Tensor x = leaf({2});
  const ls::Tensor y = x * 3;
  y.register_hook([&](const ls::Tensor&) {
    x.requires_grad_(false);
    return ls::Tensor();
  });
  y.backward();
  CHECK(!x.grad().defined());
}

TEST_CASE("hooks of a leaf that was frozen after the forward still run, as in PyTorch") {
  const ls::Tensor x = leaf({2});
  Doubles seen;
  int complete = 0;
  x.register_hook([&](const ls::Tensor& g) {
    seen.push_back(g.item<double>());
    return ls::Tensor();
  });
  ls::autograd::register_leaf_hook(x, [&](ls::autograd::Run&) { ++complete; });
  const ls::Tensor y = x * 3;
  x.requires_grad_(false);
  y.backward();
  CHECK(seen == Doubles{3});
  CHECK(complete == 1);
  CHECK(!x.grad().defined());
}

TEST_CASE("using a gradient that backward has not computed is an error that says so") {
  const ls::Tensor x = leaf({1, 2});
  for (const std::string& text : {error_of([&] { x.grad().shape(); }), error_of([&] { x.grad() * 2; })})
    CHECK(contains(text,
                   "grad() where no backward left a gradient (before backward, after zero_grad(), frozen or unused"));
}
