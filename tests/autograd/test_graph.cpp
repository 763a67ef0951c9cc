// Properties of whole graphs: long chains, lifetimes, and drawings.
#include <memory>

#include "lockstep/tensor/random/random.h"
#include "tests/support/testing.h"

namespace {

// Operations of a deep graph: a recursion over them exhausts the stack, under sanitizers sooner.
constexpr int kMany = LOCKSTEP_SLOWDOWN > 1 ? 20'000 : 100'000;

ls::Tensor chain(const ls::Tensor& x, int length) {
  ls::Tensor y = x;
  for (int i = 0; i < length; ++i) y = i % 2 == 0 ? y + 1 : y * 1;
  return y;
}

}  // namespace

TEST_CASE("a chain of 100,000 operations runs backward") {
  const ls::Tensor x = ls::tensor({2.0}, {.requires_grad = true});
  ls::Tensor y = chain(x, kMany);
  y.backward();
  CHECK(x.grad().item<float>() == 1);
}

TEST_CASE("a chain of 100,000 operations is destroyed without backward") {
  const std::int64_t before = ls::allocator_stats().allocated_bytes;
  {
    const ls::Tensor x = ls::tensor({2.0}, {.requires_grad = true});
    ls::Tensor y = chain(x, kMany);
    y = ls::Tensor();
  }
  CHECK(ls::allocator_stats().allocated_bytes == before);
}

TEST_CASE("a chain of 100,000 operations that save their inputs is destroyed without and after backward") {
  const std::int64_t before = ls::allocator_stats().allocated_bytes;
  for (const bool run : {false, true}) {
    const ls::Tensor x = ls::tensor({0.5}, {.requires_grad = true});
    ls::Tensor y = x;
    for (int i = 0; i < kMany; ++i) y = i % 2 == 0 ? ls::tanh(y) : y * y * 0.5 + 0.4;
    if (run) y.backward({.retain_graph = true});
  }
  CHECK(ls::allocator_stats().allocated_bytes == before);
}

TEST_CASE("a wide graph of 100,000 uses of one leaf runs backward") {
  const ls::Tensor x = ls::tensor({2.0}, {.requires_grad = true});
  std::vector<ls::Tensor> uses;
  for (int i = 0; i < kMany; ++i) uses.push_back(x * 1);
  ls::sum(ls::cat(uses)).backward();
  CHECK(x.grad().item<float>() == kMany);
}

TEST_CASE("live bytes stay flat over 1000 training steps") {
  const ls::Tensor x = numbers({8, 5}), w1 = numbers({7, 5}, {.requires_grad = true}, 2),
                   b1 = ls::zeros({7}, {.requires_grad = true}), w2 = numbers({3, 7}, {.requires_grad = true}, 3);
  const auto step = [&] {
    const ls::Tensor hidden = ls::tanh(ls::linear(x, w1, b1));
    const ls::Tensor y = ls::log_softmax(ls::linear(hidden, w2), -1);
    (ls::mean(y * y) + ls::norm(w2)).backward();
    const ls::NoGradGuard no_grad;
    for (const ls::Tensor& p : {w1, b1, w2}) {
      p.add_(p.grad(), -0.01);
      p.set_grad({});
    }
  };
  for (int i = 0; i < 3; ++i) step();
  const std::int64_t live = ls::allocator_stats().allocated_bytes;
  for (int i = 0; i < 1000; ++i) step();
  CHECK(ls::allocator_stats().allocated_bytes == live);
}

TEST_CASE("graphs that are dropped, run twice, or differentiated twice leak nothing") {
  const std::int64_t before = ls::allocator_stats().allocated_bytes;
  for (int i = 0; i < 20; ++i) {
    const ls::Tensor x = numbers({20}, {.requires_grad = true});
    const ls::Tensor y = ls::sum(ls::softmax(ls::exp(x) * ls::sigmoid(x), 0) * x / ls::norm(x));
    if (i % 4 == 1) y.backward({.retain_graph = true});
    if (i % 4 == 2) (void)ls::autograd::grad(ls::sum(ls::autograd::grad(y, x, {.create_graph = true})), x);
    if (i % 4 == 3) {
      y.register_hook([](const ls::Tensor& g) { return g * 2; });
      y.backward();
    }
  }
  CHECK(ls::allocator_stats().allocated_bytes == before);
}

TEST_CASE("backward releases the saved tensors while the result still exists") {
  const ls::Tensor x = ls::zeros({100000}, {.requires_grad = true});
  const ls::Tensor y = ls::sum(ls::exp(ls::exp(x)));
  const std::int64_t recorded = ls::allocator_stats().allocated_bytes;
  y.backward();
  x.set_grad({});
  CHECK(ls::allocator_stats().allocated_bytes <= recorded - 2 * 400000);
}

TEST_CASE("a saved tensor is freed after its last use, not with the whole graph") {
  const ls::Tensor x = ls::zeros({100000}, {.requires_grad = true});
  const std::int64_t before = ls::allocator_stats().allocated_bytes;
  {
    const ls::Tensor y = x + 1;  // saves nothing
    const ls::Tensor z = y.view({100, 1000}) * 2;
    CHECK(ls::allocator_stats().allocated_bytes - before < 2 * 400000 + 4096);
  }
  CHECK(ls::allocator_stats().allocated_bytes == before);
}

TEST_CASE("to_dot draws operations, leaves and the edges between them") {
  const ls::Tensor w = ls::ones({3, 2}, {.requires_grad = true}), b = ls::ones({3}, {.requires_grad = true});
  const ls::Tensor y = ls::sum(ls::relu(ls::linear(ls::ones({4, 2}), w, b)));
  CHECK(ls::autograd::to_dot(y) ==
        "digraph lockstep {\n"
        "  rankdir=BT;\n"
        "  node [shape=box, fontname=monospace];\n"
        "  n0 [label=\"sum\\n()\"];\n"
        "  n1 [label=\"relu\\n(4, 3)\"];\n"
        "  n1 -> n0;\n"
        "  n2 [label=\"linear\\n(4, 3)\"];\n"
        "  n2 -> n1;\n"
        "  n3 [label=\"(3, 2) f32 cpu\", style=rounded];\n"
        "  n3 -> n2;\n"
        "  n4 [label=\"(3) f32 cpu\", style=rounded];\n"
        "  n4 -> n2;\n"
        "}\n");
}

TEST_CASE("to_dot draws a shared leaf once, a leaf on its own, and accepts tensors without history") {
  const ls::Tensor x = ls::ones({2}, {.requires_grad = true});
  const std::string shared = ls::autograd::to_dot(x * x);
  CHECK(std::count(shared.begin(), shared.end(), '>') == 2);
  CHECK(contains(shared, "n1 [label=\"(2) f32 cpu\", style=rounded]"));
  CHECK(!contains(shared, "n2"));
  CHECK(contains(ls::autograd::to_dot(x), "(2) f32 cpu"));
  CHECK(contains(ls::autograd::to_dot(ls::zeros({5})), "(5) f32 cpu"));
}

TEST_CASE("backward runs each node under the micro-batch that recorded it, and restores the thread's own") {
  struct Ask : ls::autograd::Function<Ask> {
    static ls::Tensor forward(ls::autograd::Context&, const ls::Tensor& x) { return x * 1; }
    static ls::autograd::Gradients backward(ls::autograd::Context&, const ls::Tensor& grad) {
      return {grad * ls::random::current_micro_batch()};
    }
  };
  const ls::Tensor x = ls::ones({1}, {.requires_grad = true});
  ls::Tensor y;
  {
    const ls::random::MicroBatchGuard guard(6);
    y = Ask::apply(x);
  }
  y.backward();
  CHECK(x.grad().item<float>() == 6);
  CHECK(ls::random::current_micro_batch() == 0);
}
