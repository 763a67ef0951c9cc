// User-defined operations.
#include "tests/support/testing.h"

using ls::autograd::Context, ls::autograd::Function, ls::autograd::Gradients;

namespace {

using Doubles = std::vector<double>;
ls::Tensor leaf(std::initializer_list<double> values) {
  return ls::tensor(values, {.dtype = ls::kFloat64, .requires_grad = true});
}

struct Cube : Function<Cube> {  // saves its input
  static ls::Tensor forward(Context& context, const ls::Tensor& x) {
    context.save_for_backward({x});
    return x * x * x;
  }
  static Gradients backward(Context& context, const ls::Tensor& grad) {
    return {grad * context.saved(0) * context.saved(0) * 3.0};
  }
};

struct Exp : Function<Exp> {  // saves its output
  static ls::Tensor forward(Context& context, const ls::Tensor& x) {
    const ls::Tensor y = ls::exp(x);
    context.save_for_backward({y});
    return y;
  }
  static Gradients backward(Context& context, const ls::Tensor& grad) { return {grad * context.saved(0)}; }
};

struct Power : Function<Power> {  // has arguments that are not tensors
  static ls::Tensor forward(Context& context, const ls::Tensor& x, int exponent, double scale) {
    context.save_for_backward({x});
    last_exponent = exponent;
    return ls::pow(x, exponent) * scale;
  }
  static Gradients backward(Context& context, const ls::Tensor& grad) {
    return {grad * ls::pow(context.saved(0), last_exponent - 1) * (2.0 * last_exponent)};
  }
  static inline int last_exponent = 0;
};

struct SumAndProduct : Function<SumAndProduct> {  // several inputs and outputs
  static std::vector<ls::Tensor> forward(Context& context, const ls::Tensor& a, const ls::Tensor& b) {
    context.save_for_backward({a, b});
    return {a + b, a * b};
  }
  static Gradients backward(Context& context, const std::vector<ls::Tensor>& grads) {
    seen = {grads[0].defined(), grads[1].defined()};
    ls::Tensor ga, gb;
    if (grads[0].defined()) ga = grads[0], gb = grads[0];
    if (grads[1].defined()) {
      const ls::Tensor pa = grads[1] * context.saved(1), pb = grads[1] * context.saved(0);
      ga = ga.defined() ? ga + pa : pa;
      gb = gb.defined() ? gb + pb : pb;
    }
    return {ga, gb};
  }
  static inline std::vector<bool> seen;
};

struct Peek : Function<Peek> {  // records whether its own operations are recorded
  static ls::Tensor forward(Context&, const ls::Tensor& x) {
    inside = (x * 2).requires_grad();
    return x * 2;
  }
  static Gradients backward(Context&, const ls::Tensor& grad) { return {grad * 2}; }
  static inline bool inside = true;
};

constexpr std::size_t kMany = 70;
struct SumOfMany : Function<SumOfMany> {  // each tensor's gradient is its index
  template <class... Tensors>
  static ls::Tensor forward(Context&, const Tensors&... all) {
    return (all + ...);
  }
  static Gradients backward(Context& context, const ls::Tensor& grad) {
    Gradients gradients;
    for (std::size_t i = 0; i < kMany; ++i)
      gradients.push_back(context.needs_input_grad(i) ? grad * static_cast<double>(i) : ls::Tensor());
    return gradients;
  }
};

}  // namespace

TEST_CASE("a function's backward gives the gradient, and its own derivative") {
  const ls::Tensor x = leaf({2});
  const ls::Tensor first = ls::autograd::grad(Cube::apply(x), x, {.create_graph = true});
  CHECK(first.item<double>() == 12);
  CHECK(ls::autograd::grad(first, x).item<double>() == 12);
  CHECK(ls::autograd::gradcheck([](const std::vector<ls::Tensor>& in) { return Cube::apply(in[0]); }, {leaf({0.5, -1})},
                                {.second_order = true}));
}

TEST_CASE("a function that saves its output is differentiable twice and makes no reference cycle") {
  const std::int64_t before = ls::allocator_stats().allocated_bytes;
  {
    const ls::Tensor x = leaf({0.5, 1});
    CHECK(ls::autograd::gradcheck([](const std::vector<ls::Tensor>& in) { return Exp::apply(in[0]); }, {x},
                                  {.second_order = true}));
    const ls::Tensor y = Exp::apply(x);
    const ls::Tensor g = ls::autograd::grad(ls::sum(y), x, {.create_graph = true});
    ls::sum(g).backward();
    check_close(x.grad(), ls::exp(x.detach()), "second derivative");
    const ls::Tensor never_run = Exp::apply(x);
  }
  CHECK(ls::allocator_stats().allocated_bytes == before);
}

TEST_CASE("arguments that are not tensors are passed to forward") {
  const ls::Tensor x = leaf({3});
  const ls::Tensor y = Power::apply(x, 3, 2.0);
  CHECK(y.item<double>() == 54);
  CHECK(ls::autograd::grad(y, x).item<double>() == 54);
}

TEST_CASE("backward may return a gradient for each argument or for each tensor") {
  struct ForEach : Function<ForEach> {
    static ls::Tensor forward(Context&, int, const ls::Tensor& x, double) { return x * 5; }
    static Gradients backward(Context&, const ls::Tensor& grad) { return {ls::Tensor(), grad * 5, ls::Tensor()}; }
  };
  struct TooMany : Function<TooMany> {
    static ls::Tensor forward(Context&, const ls::Tensor& x) { return x * 5; }
    static Gradients backward(Context&, const ls::Tensor& grad) { return {grad, grad, grad}; }
  };
  const ls::Tensor x = leaf({3});
  CHECK(ls::autograd::grad(ForEach::apply(1, x, 2.0), x).item<double>() == 5);
  CHECK(contains(error_of([&] { TooMany::apply(x).backward(); }), "returned 3 gradients for 1 tensors"));
}

TEST_CASE("several outputs: unused outputs have an undefined gradient") {
  const ls::Tensor a = leaf({2}), b = leaf({5});
  auto out = SumAndProduct::apply(a, b);
  CHECK(out[0].item<double>() == 7);
  (out[1] * 10).backward();
  CHECK(SumAndProduct::seen == std::vector<bool>{false, true});
  CHECK(a.grad().item<double>() == 50);
  out = SumAndProduct::apply(a, b);
  (out[0] * out[1]).backward();
  CHECK(SumAndProduct::seen == std::vector<bool>{true, true});
  CHECK(a.grad().item<double>() == 50 + 10 + 35);
  CHECK(ls::autograd::gradcheck(
      [](const std::vector<ls::Tensor>& in) {
        const auto both = SumAndProduct::apply(in[0], in[1]);
        return both[0] * both[1];
      },
      {leaf({0.5, -1}), leaf({2, 3})}, {.second_order = true}));
}

TEST_CASE("needs_input_grad tells which tensors need a gradient") {
  struct Asking : Function<Asking> {
    static ls::Tensor forward(Context&, const ls::Tensor& a, const ls::Tensor& b) { return a + b; }
    static Gradients backward(Context& context, const ls::Tensor& grad) {
      return {context.needs_input_grad(0) ? grad * 2 : ls::Tensor(),
              context.needs_input_grad(1) ? grad * 3 : ls::Tensor()};
    }
  };
  const ls::Tensor a = leaf({1}), constant = ls::ones({1}, {.dtype = ls::kFloat64});
  Asking::apply(a, constant).backward();
  CHECK(a.grad().item<double>() == 2);
  CHECK(!constant.grad().defined());
}

TEST_CASE("gradients of more than 64 tensors are needed, and arrive") {
  std::vector<ls::Tensor> leaves;
  for (std::size_t i = 0; i < kMany; ++i) leaves.push_back(leaf({1}));
  [&]<std::size_t... kIndex>(std::index_sequence<kIndex...>) { SumOfMany::apply(leaves[kIndex]...).backward(); }
  (std::make_index_sequence<kMany>());
  for (std::size_t i = 0; i < kMany; ++i) CHECK(leaves[i].grad().item<double>() == static_cast<double>(i));
}

TEST_CASE("a change of a saved tensor is detected, and an index beyond the saved tensors is refused") {
  struct Beyond : Function<Beyond> {
    static ls::Tensor forward(Context&, const ls::Tensor& x) { return x * 1; }
    static Gradients backward(Context& context, const ls::Tensor&) { return {context.saved(0)}; }
  };
  const ls::Tensor x = leaf({2});
  const ls::Tensor y = Cube::apply(x);
  {
    const ls::NoGradGuard no_grad;
    x.add_(1);
  }
  CHECK(contains(error_of([&] { y.backward(); }), "changed in place"));
  CHECK(contains(error_of([&] { Beyond::apply(x).backward(); }), "index 0, but 0 tensors were saved"));
}

TEST_CASE("a change in place of a saved output is detected") {
  const ls::Tensor x = leaf({0.5});
  const ls::Tensor y = Exp::apply(x);
  y.detach().zero_();
  CHECK(contains(error_of([&] { y.backward(); }), "changed in place"));
}

TEST_CASE("forward is not recorded, and nothing is recorded without an input that requires grad") {
  const ls::Tensor x = leaf({1});
  CHECK(Peek::apply(x).requires_grad());
  CHECK(!Peek::inside);
  CHECK(!Peek::apply(ls::ones({1})).requires_grad());
  const ls::NoGradGuard no_grad;
  CHECK(!Peek::apply(x).requires_grad());
}

TEST_CASE("a function may return its input") {
  struct Identity : Function<Identity> {
    static ls::Tensor forward(Context&, const ls::Tensor& x) { return x; }
    static Gradients backward(Context&, const ls::Tensor& grad) { return {grad * 7}; }
  };
  const ls::Tensor x = leaf({3});
  const ls::Tensor y = Identity::apply(x);
  CHECK(!y.is_leaf());
  CHECK(x.is_leaf());
  (y * 1).backward();
  CHECK(x.grad().item<double>() == 7);
  const ls::Tensor z = Identity::apply(x * 2);
  CHECK(ls::autograd::grad(z, x).item<double>() == 14);
}

TEST_CASE("an undefined gradient for an input that needs one counts as zero") {
  struct Nothing : Function<Nothing> {
    static ls::Tensor forward(Context&, const ls::Tensor& x) { return x * 1; }
    static Gradients backward(Context&, const ls::Tensor&) { return {ls::Tensor()}; }
  };
  const ls::Tensor x = leaf({3});
  (Nothing::apply(x * 2) + x).backward();
  CHECK(x.grad().item<double>() == 1);
}

TEST_CASE("a backward that runs twice with retain_graph gives the same gradient twice") {
  const ls::Tensor x = leaf({0.5});
  const ls::Tensor y = Exp::apply(Cube::apply(x));
  y.backward({.retain_graph = true});
  const double once = x.grad().item<double>();
  y.backward();
  CHECK(x.grad().item<double>() == 2 * once);
  CHECK(contains(error_of([&] { y.backward(); }), "retain_graph"));
}

TEST_CASE("a function that saved nothing runs backward twice; for one that saved a tensor this is an error") {
  struct Twice : Function<Twice> {
    static ls::Tensor forward(Context&, const ls::Tensor& x) { return x * 2; }
    static Gradients backward(Context&, const ls::Tensor& grad) { return {grad * 2}; }
  };
  const ls::Tensor x = leaf({2}), twice = Twice::apply(x), cube = Cube::apply(x);
  twice.backward();
  twice.backward();
  CHECK(x.grad().item<double>() == 4);
  cube.backward();
  CHECK(contains(error_of([&] { cube.backward(); }), "was already run backward and its saved tensors are gone"));
}
