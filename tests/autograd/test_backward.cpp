// backward: accumulation, released graphs, grad mode, leaves, and refused calls.
#include "tests/support/testing.h"

namespace {
using Doubles = std::vector<double>;
ls::Tensor leaf(std::initializer_list<double> values) { return ls::tensor(values, {.requires_grad = true}); }
Doubles gradient(const ls::Tensor& x) { return x.grad().to_vector<double>(); }
}  // namespace

TEST_CASE("backward sets the gradients of leaves and of no other tensors") {
  const ls::Tensor x = leaf({1, 2}), constant = ls::tensor({5.0, 5.0});
  const ls::Tensor y = x * constant;
  ls::sum(y).backward();
  CHECK(gradient(x) == Doubles{5, 5});
  CHECK(!constant.grad().defined());
  CHECK(!y.grad().defined());
  CHECK(x.is_leaf());
  CHECK(!y.is_leaf());
  CHECK(y.requires_grad());
}

TEST_CASE("gradients add up over several backwards until they are cleared") {
  const ls::Tensor x = leaf({3});
  for (int i = 1; i <= 3; ++i) {
    (x * x).backward();
    CHECK(gradient(x)[0] == 6 * i);
  }
  x.set_grad({});
  CHECK(!x.grad().defined());
  (x * 2).backward();
  CHECK(gradient(x)[0] == 2);
}

TEST_CASE("a gradient that the program holds does not change when the next one is added") {
  const ls::Tensor x = leaf({3});
  (x * 2).backward();
  const ls::Tensor upstream = ls::tensor({10.0});
  x.set_grad({});
  (x + ls::tensor({0.0})).backward(upstream);
  (x * 1).backward();
  CHECK(upstream.item<float>() == 10);
  CHECK(gradient(x)[0] == 11);
}

TEST_CASE("a tensor used several times gets the sum of its uses: diamonds") {
  const ls::Tensor x = leaf({2});
  const ls::Tensor a = x * 3, b = x * x;
  (a * b + a + a).backward();  // 3x^3 + 6x
  CHECK(gradient(x)[0] == 42);
  x.set_grad({});
  ls::Tensor y = x;
  for (int i = 0; i < 30; ++i) y = y + y;  // 2^30 paths, 30 nodes
  y.backward();
  CHECK(gradient(x)[0] == 1073741824.0);
}

TEST_CASE("a second backward through a released graph is an error that names the operation and the fix") {
  const ls::Tensor x = leaf({2});
  const ls::Tensor y = ls::exp(x);
  y.backward();
  const std::string text = error_of([&] { y.backward(); });
  CHECK(contains(text, "exp"));
  CHECK(contains(text, ".retain_graph = true"));
  CHECK(gradient(x)[0] == doctest::Approx(std::exp(2.0)));
}

TEST_CASE("retain_graph keeps the graph for another backward") {
  const ls::Tensor x = leaf({2});
  const ls::Tensor y = x * x;
  y.backward({.retain_graph = true});
  y.backward({.retain_graph = true});
  y.backward();
  CHECK(gradient(x)[0] == 12);
  CHECK(!error_of([&] { y.backward(); }).empty());
}

TEST_CASE("backward through a part of the graph that another root has released is an error") {
  const ls::Tensor x = leaf({2});
  const ls::Tensor shared = x * x;
  const ls::Tensor a = shared * 2, b = shared * 3;
  a.backward();
  CHECK(contains(error_of([&] { b.backward(); }), "mul was already run backward"));
}

TEST_CASE("a second backward through operations that saved no tensor works, as in PyTorch") {
  using F = ls::Tensor (*)(const ls::Tensor& x, const ls::Tensor& c);
  const std::vector<std::pair<std::string, F>> functions = {
      {"add", [](const ls::Tensor& x, const ls::Tensor& c) { return x + c; }},
      {"add with a factor", [](const ls::Tensor& x, const ls::Tensor& c) { return ls::add(c, x, 3); }},
      {"add a number", [](const ls::Tensor& x, const ls::Tensor&) { return 1 + x; }},
      {"sub", [](const ls::Tensor& x, const ls::Tensor& c) { return c - x; }},
      {"neg", [](const ls::Tensor& x, const ls::Tensor&) { return -x; }},
      {"sum", [](const ls::Tensor& x, const ls::Tensor&) { return ls::sum(x, {0}); }},
      {"mean", [](const ls::Tensor& x, const ls::Tensor&) { return ls::mean(x); }},
      {"cumsum", [](const ls::Tensor& x, const ls::Tensor&) { return ls::cumsum(x, 0); }},
      {"cat",
       [](const ls::Tensor& x, const ls::Tensor& c) {
         return ls::cat({x, c, x});
       }},
      {"stack",
       [](const ls::Tensor& x, const ls::Tensor& c) {
         return ls::stack({c, x});
       }},
      {"split", [](const ls::Tensor& x, const ls::Tensor&) { return ls::split(x, 1)[1]; }},
      {"chunk", [](const ls::Tensor& x, const ls::Tensor&) { return ls::chunk(x, 2)[0]; }},
      {"view", [](const ls::Tensor& x, const ls::Tensor&) { return x.view({4}); }},
      {"reshape", [](const ls::Tensor& x, const ls::Tensor&) { return x.t().reshape({4}); }},
      {"permute",
       [](const ls::Tensor& x, const ls::Tensor&) {
         return x.permute({1, 0});
       }},
      {"expand", [](const ls::Tensor& x, const ls::Tensor&) { return x.expand({3, 2, 2}); }},
      {"unsqueeze", [](const ls::Tensor& x, const ls::Tensor&) { return x.unsqueeze(0).squeeze(0); }},
      {"slice", [](const ls::Tensor& x, const ls::Tensor&) { return x.narrow(1, 0, 1); }},
      {"select", [](const ls::Tensor& x, const ls::Tensor&) { return x[1]; }},
      {"clone", [](const ls::Tensor& x, const ls::Tensor&) { return x.clone(); }},
      {"to", [](const ls::Tensor& x, const ls::Tensor&) { return x.to(ls::kFloat64); }},
      {"to a device", [](const ls::Tensor& x, const ls::Tensor&) { return x.to("cpu:1"); }}};
  const ls::Tensor c = numbers({2, 2}, {}, 2);
  for (const auto& entry : functions) {
    const auto& name = entry.first;
    const auto& function = entry.second;
    CAPTURE(name);
    const ls::Tensor x = numbers({2, 2}, {.requires_grad = true}), reference = numbers({2, 2}, {.requires_grad = true});
    const ls::Tensor y = function(x, c);
    for (int i = 0; i < 2; ++i) {
      y.backward(numbers(y.shape(), y.options(), 3));
      const ls::Tensor again = function(reference, c);
      again.backward(numbers(again.shape(), again.options(), 3));
    }
    CHECK(same_bits(x.grad(), reference.grad()));
  }
}

TEST_CASE("one operation that saved a tensor makes a second backward an error, which names that operation") {
  const ls::Tensor x = leaf({2});
  const ls::Tensor y = ls::sum((-x + 1) * ls::tensor({3.0})) + x;
  y.backward();
  const std::string text = error_of([&] { y.backward(); });
  CHECK(text.starts_with("backward: mul was already run backward"));
  using F = ls::Tensor (*)(const ls::Tensor&);
  for (const F function :
       {F([](const ls::Tensor& t) { return t * 2; }), F([](const ls::Tensor& t) { return t / 2; }),
        F([](const ls::Tensor& t) { return ls::relu(t); }), F([](const ls::Tensor& t) { return ls::max(t); }),
        F([](const ls::Tensor& t) { return ls::index_select(t, 0, ls::tensor({0})); }),
        F([](const ls::Tensor& t) { return ls::where(t > 0, t, 0); })}) {
    const ls::Tensor z = function(leaf({2}));
    z.backward();
    CHECK(contains(error_of([&] { z.backward(); }), "was already run backward"));
  }
}

TEST_CASE("backward from a leaf gives it its own gradient") {
  const ls::Tensor x = leaf({2});
  x.backward();
  x.backward();
  CHECK(gradient(x)[0] == 2);
}

TEST_CASE("backward of several elements needs a gradient of their shape, dtype and device") {
  const ls::Tensor x = leaf({1, 2});
  const ls::Tensor y = x * 2;
  CHECK(contains(error_of([&] { y.backward(); }), "(2) f32 cpu has 2 elements"));
  CHECK(contains(error_of([&] { y.backward(ls::ones({3})); }), "the gradient is (3) f32 cpu, the tensor (2) f32 cpu"));
  CHECK(!error_of([&] { y.backward(ls::ones({2}, {.dtype = ls::kFloat64})); }).empty());
  CHECK(!error_of([&] { y.backward(ls::ones({2}, {.device = "cpu:1"})); }).empty());
  y.backward(ls::tensor({1.0, 10.0}));
  CHECK(gradient(x) == Doubles{2, 20});
}

TEST_CASE("backward of a tensor that depends on no leaf is an error") {
  CHECK(contains(error_of([] { ls::ones({1}).backward(); }), "does not depend on a tensor that requires grad"));
  const ls::Tensor x = leaf({1});
  CHECK(!error_of([&] { x.detach().backward(); }).empty());
  CHECK(!error_of([&] { (x > 0).backward(); }).empty());
}

TEST_CASE("under NoGradGuard nothing is recorded, and guards nest") {
  const ls::Tensor x = leaf({2});
  {
    const ls::NoGradGuard no_grad;
    CHECK(!(x * 2).requires_grad());
    CHECK(!x.view({1, 1}).requires_grad());
    CHECK(x.requires_grad());
    {
      const ls::EnableGradGuard enabled;
      CHECK((x * 2).requires_grad());
      {
        const ls::EnableGradGuard disabled(false);
        CHECK(!(x * 2).requires_grad());
      }
      CHECK((x * 2).requires_grad());
    }
    CHECK(!(x * 2).requires_grad());
  }
  CHECK((x * 2).requires_grad());
}

TEST_CASE("an exception restores the grad mode from before the guard") {
  try {
    const ls::NoGradGuard no_grad;
    ls::matmul(ls::ones({2}), ls::ones({3}));
  } catch (const ls::Error&) {
  }
  CHECK(ls::autograd::grad_mode());
  const ls::Tensor x = leaf({1});
  CHECK(!error_of([&] { ls::sum(x).backward(ls::ones({2})); }).empty());
  CHECK(ls::autograd::grad_mode());
}

TEST_CASE("detach shares storage and stops gradients") {
  const ls::Tensor x = leaf({2});
  const ls::Tensor d = x.detach();
  CHECK(d.raw_data() == x.raw_data());
  CHECK(!d.requires_grad());
  (x * d).backward();
  CHECK(gradient(x)[0] == 2);
  (x * 3).detach().requires_grad_();
  CHECK(x.requires_grad());
}

TEST_CASE("requires_grad_ is for leaves of floating-point dtype") {
  const ls::Tensor x = leaf({2});
  CHECK(contains(error_of([&] { (x * 2).requires_grad_(); }),
                 "requires_grad_: (1) f32 cpu is the result of an operation"));
  CHECK(contains(error_of([] { ls::ones({1}, {.dtype = ls::kInt64}).requires_grad_(); }), "this is (1) i64 cpu"));
  CHECK(contains(error_of([&] { (x * 2).requires_grad_(false); }), "detach()"));
  CHECK(!x.requires_grad_(false).requires_grad());
  CHECK(!(x * 2).requires_grad());
  CHECK(x.requires_grad_().requires_grad());
}

TEST_CASE("set_grad takes a tensor of the leaf's shape, dtype and device") {
  const ls::Tensor x = leaf({2});
  x.set_grad(ls::tensor({7.0}));
  (x * 2).backward();
  CHECK(gradient(x)[0] == 9);
  CHECK(contains(error_of([&] { x.set_grad(ls::ones({2})); }), "the gradient is (2) f32 cpu, the tensor (1) f32 cpu"));
}

TEST_CASE("an operand that needs no gradient costs no node and no saved tensor") {
  const ls::Tensor a = ls::ones({1000}), b = ls::ones({1000});
  CHECK(!(a * b + a).requires_grad());
  const ls::Tensor w = ls::ones({10, 10}, {.requires_grad = true});
  const std::int64_t before = ls::allocator_stats().allocated_bytes;
  const ls::Tensor y = ls::matmul(ls::ones({10, 10}), w);
  CHECK(ls::allocator_stats().allocated_bytes <= before + 2 * 700);  // the result and the saved left operand
}

TEST_CASE("a gradient of ones over a million paths equals the closed form for a small network") {
  const ls::Tensor x = numbers({4, 3}), w = numbers({2, 3}, {.requires_grad = true}, 2),
                   b = numbers({2}, {.requires_grad = true}, 3);
  ls::sum(ls::linear(x, w, b)).backward();
  check_close(b.grad(), ls::full({2}, 4.0), "bias");
  check_close(w.grad(), ls::sum(x, {0}).expand({2, 3}).contiguous(), "weight");
}

TEST_CASE("an error inside backward names the operation") {
  struct Broken : ls::autograd::Function<Broken> {
    static ls::Tensor forward(ls::autograd::Context&, const ls::Tensor& x) { return x * 2; }
    static ls::autograd::Gradients backward(ls::autograd::Context&, const ls::Tensor& grad) {
      return {ls::matmul(grad, ls::ones({7, 7}))};
    }
  };
  const ls::Tensor x = ls::ones({2, 3}, {.requires_grad = true});
  const std::string text = error_of([&] { ls::sum(Broken::apply(x)).backward(); });
  CHECK(contains(text, "(backward): matmul: inner sizes differ: a is (2, 3) f32 cpu, b is (7, 7) f32 cpu"));
  CHECK(ls::autograd::grad_mode());
  CHECK(!x.grad().defined());
}

TEST_CASE("a gradient of the wrong shape is an error of the operation that returned it") {
  struct Wrong : ls::autograd::Function<Wrong> {
    static ls::Tensor forward(ls::autograd::Context&, const ls::Tensor& x) { return x * 2; }
    static ls::autograd::Gradients backward(ls::autograd::Context&, const ls::Tensor&) { return {ls::ones({5})}; }
  };
  const ls::Tensor x = leaf({1, 2});
  CHECK(contains(error_of([&] { ls::sum(Wrong::apply(x)).backward(); }),
                 "the gradient of input 0 has shape (5), the input (2)"));
}

TEST_CASE("gradients of f16 and bf16 leaves add up in f32 and are rounded once") {
  for (const ls::DType dtype : {ls::kFloat16, ls::kBFloat16}) {
    const ls::Tensor x = ls::ones({3}, {.dtype = dtype, .requires_grad = true});
    for (int i = 0; i < 2; ++i) ls::sum(x.to(ls::kFloat32) * 3.0 + x.to(ls::kFloat32)).backward();
    CHECK(x.grad().dtype() == dtype);
    CHECK(gradient(x) == Doubles{8, 8, 8});
  }
}
