// autograd::checkpoint: the same bits as without, and errors where the function does not repeat itself.
#include "tests/nn/support.h"

namespace {

using ls::autograd::checkpoint;

struct Block : nn::Module {
  nn::LayerNorm& norm = add<nn::LayerNorm>("norm", 16);
  nn::Linear& hidden = add<nn::Linear>("hidden", 16, 64);
  nn::Dropout& dropout = add<nn::Dropout>("dropout", 0.3);
  nn::Linear& out = add<nn::Linear>("out", 64, 16);
  ls::Tensor forward(const ls::Tensor& x) const override { return x + out(dropout(ls::gelu(hidden(norm(x))))); }
};

struct Stack : nn::Module {
  std::vector<Block*> blocks;
  explicit Stack(int depth) {
    for (int i = 0; i < depth; ++i) blocks.push_back(&add<Block>("block" + std::to_string(i)));
  }
  // 0: no recomputation; 1: each block; 2: pairs of blocks, and each block in them
  ls::Tensor run(ls::Tensor x, int level) const {
    if (level == 2) {
      for (std::size_t i = 0; i < blocks.size(); i += 2)
        x = checkpoint([this, i](const ls::Tensor& y) { return checkpoint(*blocks[i + 1], checkpoint(*blocks[i], y)); },
                       x);
      return x;
    }
    for (const Block* block : blocks) x = level == 1 ? checkpoint(*block, x) : (*block)(x);
    return x;
  }
};

// Output, gradients of the input and of all parameters, and the random state after one step.
std::vector<ls::Tensor> step(int level) {
  ls::manual_seed(3);
  Stack model(4);
  const ls::Tensor x = ls::randn({8, 16}).requires_grad_();
  const ls::Tensor y = model.run(x, level);
  y.backward(ls::randn({8, 16}));
  std::vector<ls::Tensor> all = {y.detach(), x.grad(), ls::randn({4})};
  for (const nn::Parameter& parameter : model.parameters()) all.push_back(parameter->grad());
  return all;
}

void check_same(const std::vector<ls::Tensor>& a, const std::vector<ls::Tensor>& b) {
  REQUIRE(a.size() == b.size());
  for (std::size_t i = 0; i < a.size(); ++i) {
    CAPTURE(i);
    CHECK(same_bits(a[i], b[i]));
  }
}

}  // namespace

TEST_CASE("recomputation gives the bits of the plain run, dropout included, also nested") {
  const std::vector<ls::Tensor> plain = step(0);
  check_same(step(1), plain);
  check_same(step(2), plain);
}

TEST_CASE("recomputation keeps inputs and results only") {
  ls::manual_seed(0);
  Stack model(8);
  const auto kept = [&](int level) {
    const ls::Tensor x = ls::randn({64, 16}).requires_grad_();
    const std::int64_t before = ls::allocator_stats().allocated_bytes;
    const ls::Tensor y = model.run(x, level);
    return ls::allocator_stats().allocated_bytes - before;
  };
  const std::int64_t before = ls::allocator_stats().allocated_bytes;
  const ls::Tensor one = ls::empty({64, 16});
  const std::int64_t boundary = ls::allocator_stats().allocated_bytes - before;
  CHECK(kept(1) == 8 * boundary);      // each block's result is the next one's input
  CHECK(kept(0) > 8 * 10 * boundary);  // gelu's input and output, and the mask, are four times as wide
}

TEST_CASE("checkpoint takes several inputs, returns several results, and passes on what needs no gradient") {
  const ls::Tensor a = numbers({3, 4}).requires_grad_(), b = numbers({4}).requires_grad_(), c = numbers({3, 4});
  const auto compute = [](const ls::Tensor& a, const ls::Tensor& b, const ls::Tensor& c) {
    return std::vector<ls::Tensor>{a * b + c, ls::argmax(a, 1), ls::exp(b), c * 2};
  };
  const auto gradients = [&](const std::vector<ls::Tensor>& out) {
    CHECK(out[0].requires_grad());
    CHECK_FALSE(out[1].requires_grad());
    CHECK(out[2].requires_grad());
    CHECK_FALSE(out[3].requires_grad());
    return ls::autograd::grad({ls::sum(out[0] * out[0]) + ls::sum(out[2])}, {a, b});
  };
  check_same(gradients(checkpoint(compute, a, b, c)), gradients(compute(a, b, c)));
  // Only one of the results is used.
  const ls::Tensor g = ls::autograd::grad(ls::sum(checkpoint(compute, a, b, c)[2]), b);
  CHECK(same_bits(g, ls::exp(b.detach())));
}

TEST_CASE("tensors that the function captures get their gradients") {
  const ls::Tensor w = numbers({4}).requires_grad_(), x = numbers({3, 4});
  const ls::Tensor scaled = w * 3;  // has a history of its own
  const auto f = [&](const ls::Tensor& x) { return ls::tanh(x * scaled + w); };
  const ls::Tensor with = ls::autograd::grad(ls::sum(checkpoint(f, x)), w, {.retain_graph = true});
  CHECK(same_bits(with, ls::autograd::grad(ls::sum(f(x)), w)));
}

TEST_CASE("without grad mode, and for inputs without gradients, checkpoint only calls the function") {
  const auto f = [](const ls::Tensor& x) { return x * 2; };
  CHECK_FALSE(checkpoint(f, numbers({3})).requires_grad());
  const ls::NoGradGuard no_grad;
  CHECK_FALSE(checkpoint(f, numbers({3}).requires_grad_()).requires_grad());
}

TEST_CASE("recomputation updates no running statistics") {
  const auto statistics = [](bool recompute) {
    ls::manual_seed(1);
    nn::BatchNorm2d norm(3);
    const ls::Tensor x = ls::randn({4, 3, 5, 5}).requires_grad_();
    const ls::Tensor y = recompute ? checkpoint(norm, x) : norm(x);
    ls::sum(y * y * y).backward();
    return std::vector<ls::Tensor>{*norm.running_mean, *norm.running_var, *norm.num_batches_tracked, x.grad(),
                                   norm.weight->grad()};
  };
  check_same(statistics(true), statistics(false));
}

TEST_CASE("a function that does not repeat itself is an error of backward") {
  const ls::Tensor x = numbers({4, 16}).requires_grad_();
  Block block;
  ls::Tensor y = checkpoint(block, x);
  block.eval();
  CHECK(
      contains(error_of([&] { y.sum().backward(); }), "drew random numbers 1 times in forward, 0 times when repeated"));
  y = checkpoint(block, x);
  block.train();
  CHECK(contains(error_of([&] { y.sum().backward(); }), "draws other random numbers"));

  y = checkpoint(block, x);
  {
    const ls::NoGradGuard no_grad;
    block.out.bias->fill_(2);
  }
  CHECK(contains(error_of([&] { y.sum().backward(); }), "was changed in place"));

  std::int64_t rows = 4;
  const auto changing = [&rows](const ls::Tensor& x) { return x.narrow(0, 0, rows) * 2; };
  y = checkpoint(changing, x);
  rows = 3;
  CHECK(contains(error_of([&] { y.sum().backward(); }), "was (4, 16) f32 in forward and is (3, 16) f32 when repeated"));

  y = checkpoint(block, x);
  CHECK(contains(error_of([&] { y.sum().backward({}, {.create_graph = true}); }), "second derivatives"));
}

TEST_CASE("the function must use the same parameters, and an input may be frozen before backward") {
  const ls::Tensor a = numbers({3}).requires_grad_(), b = numbers({3}, {}, 2).requires_grad_();
  const ls::Tensor x = numbers({3}, {}, 3).requires_grad_();
  bool flip = false;
  const auto f = [&](const ls::Tensor& x) { return x * (flip ? a : b); };
  const ls::Tensor y = ls::sum(checkpoint(f, x));
  flip = true;
  CHECK(contains(error_of([&] { y.backward(); }), "used another parameter in forward"));
  CHECK_FALSE(a.grad().defined());

  const ls::Tensor z = ls::sum(checkpoint(f, x));
  x.requires_grad_(false);
  z.backward();
  CHECK(same_bits(a.grad(), x));
  CHECK_FALSE(x.grad().defined());
}

TEST_CASE("DataParallel refuses to run inside checkpoint: its replicas' random numbers would not repeat") {
  nn::Linear fc(3, 2);
  ls::parallel::DataParallel dp(fc, {"cpu:0", "cpu:1"});
  const auto run = [&](const ls::Tensor& x) { return dp(x); };
  CHECK(contains(error_of([&] { checkpoint(run, ls::ones({4, 3})); }), "call checkpoint inside the module"));
}

TEST_CASE("a graph with checkpoint runs backward again if it is retained") {
  const ls::Tensor x = numbers({3}).requires_grad_();
  const ls::Tensor y = ls::sum(checkpoint([](const ls::Tensor& x) { return ls::exp(x); }, x));
  y.backward({}, {.retain_graph = true});
  const ls::Tensor once = x.grad().clone();
  y.backward();
  CHECK(same_bits(x.grad(), once * 2));
  CHECK(contains(error_of([&] { y.backward(); }), "already run backward"));
}
