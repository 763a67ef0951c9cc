// Split backwards: what runs in which part, what is held between both parts, and errors.
#include <optional>

#include "lockstep/autograd/history_internal.h"
#include "tests/support/split_check.h"

using ls::autograd::SplitBackward, split_check::Tensors;

namespace {
const ls::TensorOptions kLeaf = {.requires_grad = true};
}  // namespace

TEST_CASE("a Function runs in both parts with complementary needs, once if it leads to one side only") {
  struct Product : ls::autograd::Function<Product> {
    static std::string& needs() {
      static std::string text;
      return text;
    }
    static ls::Tensor forward(ls::autograd::Context& context, const ls::Tensor& a, const ls::Tensor& b) {
      context.save_for_backward({a, b});
      return a * b;
    }
    static ls::autograd::Gradients backward(ls::autograd::Context& context, const ls::Tensor& grad) {
      const bool a = context.needs_input_grad(0), b = context.needs_input_grad(1);
      needs() += a && b ? "*" : a ? "a" : "b";
      return {a ? grad * context.saved(1) : ls::Tensor(), b ? grad * context.saved(0) : ls::Tensor()};
    }
  };
  const ls::Tensor x = ls::tensor({2.0}, kLeaf), w = ls::tensor({3.0}, kLeaf), v = ls::tensor({5.0}, kLeaf);
  SplitBackward mixed(Product::apply(x, w), {}, x);
  CHECK(Product::needs() == "a");
  mixed.run();
  CHECK(Product::needs() == "ab");
  CHECK(mixed.take_input_gradient().item<float>() == 3);
  CHECK(w.grad().item<float>() == 2);
  Product::needs().clear();
  SplitBackward(Product::apply(w, x), {}, x).run();
  CHECK(Product::needs() == "ba");
  Product::needs().clear();
  SplitBackward apart(Product::apply(x, x) + Product::apply(w, v), {}, x);
  CHECK(Product::needs() == "*");
  apart.run();
  CHECK(Product::needs() == "**");
}

TEST_CASE("hooks on results run once, hooks of parameters in part W, as in a joint backward") {
  std::string order;
  const ls::Tensor x = ls::tensor({2.0}, kLeaf), w = ls::tensor({3.0}, kLeaf), v = ls::tensor({5.0}, kLeaf);
  const auto watch = [&](const ls::Tensor& tensor, char name, double factor = 1) {
    tensor.register_hook([&order, name, factor](const ls::Tensor& g) { return order += name, g * factor; });
  };
  watch(x, 'x'), watch(w, 'w', 10), watch(v, 'v');
  for (const auto& [leaf, name] : {std::pair{w, 'W'}, {v, 'V'}, {x, 'X'}}) {
    ls::autograd::register_leaf_hook(leaf, [&order, name = name](ls::autograd::Run& run) {
      order += name;
      run.at_end([&order] { order += '.'; });
    });
  }
  const ls::Tensor product = x * w, square = v * v;
  watch(product, 'p', 7), watch(square, 's');
  const ls::Tensor y = product * square;
  watch(y, 'y');
  SplitBackward backward(y, {}, x);
  CHECK(order == "ypx");
  backward.run();
  CHECK(order == "ypxsvVwW..");
  CHECK(backward.take_input_gradient().item<float>() == 3 * 25 * 7);
  CHECK(w.grad().item<float>() == 2 * 25 * 70);
  CHECK(v.grad().item<float>() == 2 * 5 * 6);
}

TEST_CASE("the leaf hook of a parameter without gradient runs in part W") {
  struct Nothing : ls::autograd::Function<Nothing> {
    static ls::Tensor forward(ls::autograd::Context&, const ls::Tensor& x) { return x * 2; }
    static ls::autograd::Gradients backward(ls::autograd::Context&, const ls::Tensor&) { return {ls::Tensor()}; }
  };
  const ls::Tensor x = ls::tensor({2.0}, kLeaf), w = ls::tensor({3.0}, kLeaf), v = ls::tensor({3.0}, kLeaf);
  int runs = 0;
  for (const ls::Tensor& leaf : {w, v}) ls::autograd::register_leaf_hook(leaf, [&](ls::autograd::Run&) { ++runs; });
  SplitBackward backward(Nothing::apply(x * w) + x * Nothing::apply(v), {}, x);
  CHECK(runs == 0);
  CHECK(backward.take_input_gradient().item<float>() == 6);
  backward.run();
  CHECK(runs == 2);
  CHECK(!w.grad().defined());
  CHECK(!v.grad().defined());
}

TEST_CASE("a parameter that is frozen, or gets a hook or a view, between the parts is treated as in part W") {
  const ls::Tensor x = numbers({2, 3}, kLeaf), w = numbers({3, 3}, kLeaf, 2), b = numbers({3}, kLeaf, 3),
                   view = ls::full({3, 3}, -7.0);
  SplitBackward backward(ls::linear(x, w, b), ls::ones({2, 3}), x);
  ls::autograd::set_gradient_view(w, view);
  b.requires_grad_(false);
  int runs = 0;
  ls::autograd::register_leaf_hook(w, [&](ls::autograd::Run&) { ++runs; });
  backward.run();
  CHECK(w.grad().raw_data() == view.raw_data());
  CHECK(ls::autograd::gradient_copies(w) == 0);
  CHECK(runs == 1);
  CHECK(!b.grad().defined());
}

// --- memory ---------------------------------------------------------------------------------------------------------

TEST_CASE("between the parts only what part W needs is held, and after part W nothing") {
  constexpr std::int64_t kRows = 64, kWidth = 32, kActivation = kRows * kWidth * 4;
  const auto live = [] { return ls::allocator_stats().allocated_bytes; };
  const ls::Tensor w = numbers({kWidth, kWidth}, kLeaf), v = numbers({kWidth, kWidth}, kLeaf, 2);
  w.set_grad(ls::zeros({kWidth, kWidth})), v.set_grad(ls::zeros({kWidth, kWidth}));
  const std::int64_t before = live();
  ls::Tensor x = numbers({kRows, kWidth}, kLeaf, 3);
  std::optional<SplitBackward> backward;
  {
    const ls::Tensor y = ls::linear(ls::tanh(ls::sigmoid(ls::linear(x, w))), v);
    backward.emplace(y, numbers({kRows, kWidth}, {}, 4), x);
  }
  CHECK(backward->take_input_gradient().defined());
  // x, the operand of the second product, and the gradients of both products.
  CHECK(live() - before == 4 * kActivation);
  CHECK(backward->gradient_bytes() == 2 * kActivation);
  x = ls::Tensor();
  CHECK(live() - before == 4 * kActivation);
  backward->run();
  CHECK(live() == before);
  CHECK(backward->gradient_bytes() == 0);
}

TEST_CASE("a backward that is dropped between the parts leaks nothing") {
  const std::int64_t before = ls::allocator_stats().allocated_bytes;
  {
    const ls::Tensor x = numbers({4, 4}, kLeaf), w = numbers({4, 4}, kLeaf, 2);
    ls::Tensor y = x;
    for (int i = 0; i < 20000; ++i) y = ls::tanh(y) * w;
    const SplitBackward backward(y, ls::ones({4, 4}), x);
    y = ls::Tensor();
  }
  CHECK(ls::allocator_stats().allocated_bytes == before);
}

TEST_CASE("gradient_bytes counts memory that several gradients share once, and without an input that of the root") {
  const ls::Tensor x = numbers({8}, kLeaf), a = numbers({8}, kLeaf, 2), b = numbers({8}, kLeaf, 3);
  CHECK(SplitBackward(x + a + b, ls::ones({8}), x).gradient_bytes() == 32);
  CHECK(SplitBackward(ls::sum(x + a + b), {}, x).gradient_bytes() == 4);  // expanded
  CHECK(SplitBackward(x * a, ls::ones({8}), {}).gradient_bytes() == 32);
}

// --- errors ---------------------------------------------------------------------------------------------------------

TEST_CASE("wrong roots, gradients and inputs, and a second run of part W, are errors") {
  const ls::Tensor x = numbers({3}, kLeaf), w = numbers({3}, kLeaf, 2);
  const auto error = [](const ls::Tensor& root, const ls::Tensor& gradient, const ls::Tensor& input) {
    return error_of([&] { const SplitBackward backward(root, gradient, input); });
  };
  CHECK(contains(error(ls::ones({1}), {}, x), "does not depend on a tensor that requires grad"));
  CHECK(contains(error(x * w, {}, x), "has 3 elements; reduce it to one, or pass a gradient"));
  CHECK(contains(error(x * w, ls::ones({2}), x), "the gradient is (2) f32 cpu, the tensor (3) f32 cpu"));
  CHECK(contains(error(x * w, ls::ones({3}), x * 2), "expected a leaf that requires grad"));
  CHECK(contains(error(x * w, ls::ones({3}), ls::ones({3})), "expected a leaf that requires grad"));
  SplitBackward backward(x * w, ls::ones({3}), x);
  backward.run();
  CHECK(contains(error_of([&] { backward.run(); }), "part W has already run"));
}

TEST_CASE("a checkpoint that leads to the input and to parameters is refused, others are not") {
  const ls::Tensor x = numbers({3}, kLeaf), w = numbers({3}, kLeaf, 2), ones = ls::ones({3});
  const auto scaled = [&](const ls::Tensor& t) { return ls::tanh(t) * w; };
  const ls::Tensor mixed = ls::autograd::checkpoint(scaled, x);
  const std::string error = error_of([&] { const SplitBackward backward(mixed, ones, x); });
  CHECK(contains(error, "checkpoint (backward): the schedule zb1p runs this backward in two parts"));
  CHECK(contains(error, "would recompute the function twice; use 1f1b"));
  const auto plain = [](const ls::Tensor& t) { return ls::tanh(t) * t; };
  split_check::check(
      [&](const Tensors& in) {
        return ls::autograd::checkpoint(plain, in[0]) * ls::autograd::checkpoint(plain, in[1]);
      },
      {x, w});
}

TEST_CASE("a saved tensor that is changed in place between the parts is an error of part W") {
  const ls::Tensor x = numbers({2, 3}, kLeaf), w = numbers({3, 3}, kLeaf, 2);
  const ls::Tensor hidden = x * 2;
  SplitBackward backward(ls::linear(hidden, w), ls::ones({2, 3}), x);
  hidden.detach().fill_(1);
  CHECK(contains(error_of([&] { backward.run(); }), "was changed in place after it was saved for backward"));
  CHECK(!w.grad().defined());
}

TEST_CASE("an exception in part W calls at_error, releases the views that it took, and ends the backward") {
  const ls::Tensor x = numbers({2, 3}, kLeaf), w = numbers({3, 3}, kLeaf, 2), v = numbers({3, 3}, kLeaf, 3),
                   view = ls::full({3, 3}, -7.0);
  ls::autograd::set_gradient_view(w, view);
  std::string seen;
  ls::autograd::register_leaf_hook(v, [&](ls::autograd::Run& run) {
    run.at_end([&] { seen += "end "; });
    run.at_error([&](const std::exception& error) { seen += error.what(); });
  });
  ls::HookHandle hook =
      ls::autograd::register_leaf_hook(w, [](ls::autograd::Run&) { throw ls::InvalidArgument("stop here"); });
  const auto forward = [&] { return ls::linear(ls::linear(x, w), v); };
  SplitBackward backward(forward(), ls::ones({2, 3}), x);
  CHECK(seen.empty());
  CHECK(contains(error_of([&] { backward.run(); }), "stop here"));
  CHECK(seen == "stop here");
  CHECK(contains(error_of([&] { backward.run(); }), "part W has already run"));
  hook.remove();
  w.set_grad({}), v.set_grad({});
  SplitBackward(forward(), ls::ones({2, 3}), x).run();
  CHECK(seen == "stop hereend ");
  CHECK(w.grad().raw_data() == view.raw_data());
}

TEST_CASE("an exception in part I passes through, and the next backward works") {
  const ls::Tensor x = ls::tensor({2.0}, kLeaf), w = ls::tensor({3.0}, kLeaf);
  ls::HookHandle hook =
      x.register_hook([](const ls::Tensor&) -> ls::Tensor { throw ls::InvalidArgument("stop here"); });
  CHECK(contains(error_of([&] { const SplitBackward backward(x * w, {}, x); }), "stop here"));
  hook.remove();
  SplitBackward backward(x * w, {}, x);
  backward.run();
  CHECK(backward.take_input_gradient().item<float>() == 3);
  CHECK(w.grad().item<float>() == 2);
}
