// Bucket views: kernels write gradients directly into the bucket.
#include "lockstep/autograd/history_internal.h"
#include "tests/support/testing.h"

using ls::autograd::gradient_copies, ls::autograd::set_gradient_view;

namespace {

// A small network: two layers and a loss.
struct Mlp {
  ls::Tensor w1, b1, w2, b2;
  explicit Mlp(const ls::TensorOptions& leaf = {.requires_grad = true})
      : w1(numbers({5, 4}, leaf)), b1(numbers({5}, leaf, 2)), w2(numbers({3, 5}, leaf, 3)), b2(numbers({3}, leaf, 4)) {}
  std::vector<ls::Tensor> parameters() const { return {w1, b1, w2, b2}; }
  ls::Tensor loss(const ls::Tensor& x) const {
    return ls::mean(ls::pow(ls::linear(ls::relu(ls::linear(x, w1, b1)), w2, b2), 2));
  }
};

// One bucket for all gradients; the view of each parameter is aligned to 64 bytes.
struct Bucket {
  ls::Tensor memory = ls::full({1024}, -7.0);
  std::vector<ls::Tensor> views;
  explicit Bucket(const std::vector<ls::Tensor>& parameters) {
    std::int64_t at = 0;
    for (const ls::Tensor& p : parameters) {
      views.push_back(memory.narrow(0, at, p.numel()).view(p.shape()));
      set_gradient_view(p, views.back());
      at += (p.numel() + 15) / 16 * 16;
    }
  }
};

void check_at_home(const std::vector<ls::Tensor>& parameters, const Bucket& bucket) {
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    REQUIRE(parameters[i].grad().defined());
    CHECK(parameters[i].grad().raw_data() == bucket.views[i].raw_data());
  }
}

}  // namespace

TEST_CASE("an MLP's gradients are written into bucket views without a copy, and have the bits of separate gradients") {
  const ls::Tensor x = numbers({6, 4}, {}, 9);
  const Mlp plain, viewed;
  const Bucket bucket(viewed.parameters());
  for (int step = 0; step < 3; ++step) {
    plain.loss(x).backward();
    viewed.loss(x).backward();
    check_at_home(viewed.parameters(), bucket);
    for (std::size_t i = 0; i < 4; ++i) {
      CHECK(same_bits(plain.parameters()[i].grad(), viewed.parameters()[i].grad()));
      CHECK(gradient_copies(viewed.parameters()[i]) == 0);
      plain.parameters()[i].set_grad({});
      viewed.parameters()[i].set_grad({});
    }
  }
}

TEST_CASE("layer normalisation writes the gradients of its parameters into bucket views") {
  const ls::Tensor x = numbers({4, 6}), upstream = numbers({4, 6}, {}, 2);
  std::vector<ls::Tensor> plain = {numbers({6}, {.requires_grad = true}, 3), numbers({6}, {.requires_grad = true}, 4)},
                          viewed = {numbers({6}, {.requires_grad = true}, 3), numbers({6}, {.requires_grad = true}, 4)};
  const Bucket bucket(viewed);
  ls::layer_norm(x, 6, plain[0], plain[1]).backward(upstream);
  ls::layer_norm(x, 6, viewed[0], viewed[1]).backward(upstream);
  check_at_home(viewed, bucket);
  for (std::size_t i = 0; i < 2; ++i) {
    CHECK(same_bits(plain[i].grad(), viewed[i].grad()));
    CHECK(gradient_copies(viewed[i]) == 0);
  }
}

TEST_CASE("convolution and batch normalisation write the gradients of their parameters into bucket views") {
  const ls::Tensor x = numbers({3, 4, 5, 5}), upstream = numbers({3, 6, 4, 4}, {}, 2);
  const auto leaves = [] {
    const ls::TensorOptions leaf = {.requires_grad = true};
    return std::vector<ls::Tensor>{numbers({6, 2, 2, 2}, leaf, 3), numbers({6}, leaf, 4), numbers({6}, leaf, 5),
                                   numbers({6}, leaf, 6)};
  };
  const auto run = [&](const std::vector<ls::Tensor>& p) {
    ls::batch_norm(ls::conv2d(x, p[0], p[1], 1, 0, 1, 2), p[2], p[3], {}, {}, true).backward(upstream);
  };
  const std::vector<ls::Tensor> plain = leaves(), viewed = leaves();
  const Bucket bucket(viewed);
  run(plain), run(viewed);
  check_at_home(viewed, bucket);
  for (std::size_t i = 0; i < 4; ++i) {
    CHECK(same_bits(plain[i].grad(), viewed[i].grad()));
    CHECK(gradient_copies(viewed[i]) == 0);
  }
}

TEST_CASE("gradients accumulate in bucket views over several backwards") {
  const ls::Tensor x = numbers({6, 4}, {}, 9), z = numbers({6, 4}, {}, 10);
  const Mlp plain, viewed;
  const Bucket bucket(viewed.parameters());
  for (const ls::Tensor& batch : {x, z, x}) {
    plain.loss(batch).backward();
    viewed.loss(batch).backward();
  }
  check_at_home(viewed.parameters(), bucket);
  for (std::size_t i = 0; i < 4; ++i) CHECK(same_bits(plain.parameters()[i].grad(), viewed.parameters()[i].grad()));
}

TEST_CASE("the gradient of a tied weight, used by two operations, is complete in its bucket view") {
  for (const bool transposed : {false, true}) {
    const auto run = [&](const ls::Tensor& w, const ls::Tensor& x) {
      const ls::Tensor hidden = ls::relu(ls::linear(x, w));
      ls::sum(transposed ? ls::linear(hidden, w.t()) : ls::linear(hidden, w)).backward();
    };
    const ls::Tensor x = numbers({6, 4}, {}, 9);
    const ls::Tensor plain = numbers({4, 4}, {.requires_grad = true}),
                     viewed = numbers({4, 4}, {.requires_grad = true});
    const Bucket bucket({viewed});
    run(plain, x), run(viewed, x);
    check_at_home({viewed}, bucket);
    CHECK(same_bits(plain.grad(), viewed.grad()));
  }
}

TEST_CASE("every way to use a leaf leaves its gradient in its bucket view, with the bits of a gradient without one") {
  using F = ls::Tensor (*)(const ls::Tensor&, const ls::Tensor&);
  const std::vector<std::pair<std::string, F>> uses = {
      {"add", [](const ls::Tensor& p, const ls::Tensor& x) { return x + p; }},
      {"add left", [](const ls::Tensor& p, const ls::Tensor& x) { return p + x; }},
      {"add to itself", [](const ls::Tensor& p, const ls::Tensor&) { return p + p; }},
      {"add broadcast",
       [](const ls::Tensor& p, const ls::Tensor& x) {
         return x.unsqueeze(0).expand({3, 4, 4}) + p;
       }},
      {"add row", [](const ls::Tensor& p, const ls::Tensor& x) { return x * 2 + p[0]; }},
      {"mul", [](const ls::Tensor& p, const ls::Tensor& x) { return x * p; }},
      {"mul by itself", [](const ls::Tensor& p, const ls::Tensor&) { return p * p; }},
      {"matmul right", [](const ls::Tensor& p, const ls::Tensor& x) { return ls::matmul(x, p); }},
      {"matmul left", [](const ls::Tensor& p, const ls::Tensor& x) { return ls::matmul(p, x); }},
      {"matmul by itself", [](const ls::Tensor& p, const ls::Tensor&) { return ls::matmul(p, p); }},
      {"matmul batched",
       [](const ls::Tensor& p, const ls::Tensor& x) {
         return ls::matmul(x.unsqueeze(0).expand({3, 4, 4}), p);
       }},
      {"linear", [](const ls::Tensor& p, const ls::Tensor& x) { return ls::linear(x, p); }},
      {"linear 1-D", [](const ls::Tensor& p, const ls::Tensor& x) { return ls::linear(x[0], p); }},
      {"linear 3-D", [](const ls::Tensor& p, const ls::Tensor& x) { return ls::linear(x.unsqueeze(0), p); }},
      {"linear as x", [](const ls::Tensor& p, const ls::Tensor& x) { return ls::linear(p, x); }},
      {"linear as x and weight", [](const ls::Tensor& p, const ls::Tensor&) { return ls::linear(p, p); }},
      {"index_select",
       [](const ls::Tensor& p, const ls::Tensor&) {
         return ls::index_select(p, 0, ls::tensor({1, 1}));
       }},
      {"slice", [](const ls::Tensor& p, const ls::Tensor&) { return p.slice(0, 1, 3); }},
      {"transpose", [](const ls::Tensor& p, const ls::Tensor& x) { return p.t() * x; }},
      {"expand",
       [](const ls::Tensor& p, const ls::Tensor&) {
         return p.expand({2, 4, 4});
       }},
      {"two uses", [](const ls::Tensor& p, const ls::Tensor& x) { return ls::linear(x, p) + p; }},
      {"two uses, other order", [](const ls::Tensor& p, const ls::Tensor& x) { return p + ls::linear(x, p); }},
      {"several", [](const ls::Tensor& p, const ls::Tensor& x) { return ls::matmul(ls::linear(x, p) + p, p) * p; }},
  };
  const ls::Tensor x = numbers({4, 4}, {}, 9);
  for (const auto& entry : uses) {
    const auto& name = entry.first;
    const auto& use = entry.second;
    CAPTURE(name);
    const ls::Tensor plain = numbers({4, 4}, {.requires_grad = true}),
                     viewed = numbers({4, 4}, {.requires_grad = true});
    const Bucket bucket({viewed});
    for (int step = 0; step < 2; ++step) {
      for (const ls::Tensor& p : {plain, viewed}) {
        const ls::Tensor y = use(p, x);
        y.backward(numbers(y.shape(), {}, 11));
      }
      REQUIRE(viewed.grad().defined());
      CHECK(viewed.grad().raw_data() == bucket.views[0].raw_data());
      CHECK(same_bits(plain.grad(), viewed.grad()));
      plain.set_grad({}), viewed.set_grad({});
    }
  }
}

TEST_CASE("the gradient of a bias is written into its bucket view: 1-D, and of shape (1, n)") {
  const ls::Tensor x = numbers({6, 4}, {}, 9);
  for (const ls::Shape& shape : {ls::Shape{4}, ls::Shape{1, 4}, ls::Shape{6, 1}, ls::Shape{}}) {
    const ls::Tensor plain = numbers(shape, {.requires_grad = true}), viewed = numbers(shape, {.requires_grad = true});
    const Bucket bucket({viewed});
    for (const ls::Tensor& p : {plain, viewed}) (x + p).backward(numbers({6, 4}, {}, 12));
    CHECK_MESSAGE(viewed.grad().raw_data() == bucket.views[0].raw_data(), shape.to_string());
    CHECK(same_bits(plain.grad(), viewed.grad()));
  }
}

TEST_CASE("a gradient computed in another dtype is stored in its bucket view in the leaf's dtype") {
  const ls::Tensor p = numbers({4}, {.requires_grad = true}), x = numbers({6, 4}, {.dtype = ls::kFloat64});
  const Bucket bucket({p});
  ls::sum(x + p).backward();
  CHECK(p.grad().raw_data() == bucket.views[0].raw_data());
  CHECK(p.grad().to_vector<double>() == std::vector<double>(4, 6));
}

TEST_CASE("a gradient that had to be copied into its bucket view is counted") {
  const ls::Tensor p = numbers({4}, {.requires_grad = true});
  const Bucket bucket({p});
  ls::sum(ls::exp(p)).backward();
  CHECK(gradient_copies(p) == 1);
  CHECK(p.grad().raw_data() == bucket.views[0].raw_data());
}

TEST_CASE("the gradient that a tensor hook returns is stored in the bucket view") {
  const ls::Tensor w = numbers({3, 4}, {.requires_grad = true}), x = numbers({2, 4}, {}, 2);
  const Bucket bucket({w});
  w.register_hook([](const ls::Tensor& g) { return g * 2; });
  ls::sum(ls::linear(x, w)).backward();
  CHECK(w.grad().raw_data() == bucket.views[0].raw_data());
  check_close(w.grad(), (ls::sum(x, {0}) * 2).expand({3, 4}).contiguous(), "twice");
}

TEST_CASE("autograd::grad and create_graph do not write into bucket views") {
  const ls::Tensor w = numbers({3, 4}, {.requires_grad = true}), x = numbers({2, 4}, {}, 2);
  const Bucket bucket({w});
  const ls::Tensor g = ls::autograd::grad(ls::sum(ls::linear(x, w)), w);
  CHECK(g.raw_data() != bucket.views[0].raw_data());
  ls::autograd::grad(ls::sum(ls::linear(x, w)), w, {.create_graph = true});
  CHECK(ls::max(bucket.memory).item<float>() == -7);
}

TEST_CASE("a bucket view must fit its leaf, and may be removed") {
  const ls::Tensor w = numbers({3, 4}, {.requires_grad = true});
  CHECK(contains(error_of([&] {
                   set_gradient_view(w, ls::zeros({4, 3}));
                 }),
                 "the gradient of (3, 4) f32 cpu needs a contiguous tensor like it, got (4, 3) f32 cpu"));
  CHECK(!error_of([&] { set_gradient_view(w, ls::zeros({4, 3}).t()); }).empty());
  CHECK(!error_of([&] { set_gradient_view(w, ls::zeros({3, 4}, {.dtype = ls::kFloat64})); }).empty());
  CHECK(!error_of([&] { set_gradient_view(w, ls::zeros({3, 4}, {.device = "cpu:1"})); }).empty());
  CHECK(!error_of([&] { set_gradient_view(w * 2, ls::zeros({3, 4})); }).empty());
  const Bucket bucket({w});
  set_gradient_view(w, {});
  ls::sum(ls::linear(numbers({2, 4}), w)).backward();
  CHECK(w.grad().raw_data() != bucket.views[0].raw_data());
}

TEST_CASE("after an error in backward the next one writes into the bucket view again") {
  const ls::Tensor w = numbers({3, 4}, {.requires_grad = true}), x = numbers({2, 4}, {}, 2),
                   c = numbers({3, 4}, {.requires_grad = true}, 3);
  const Bucket bucket({w});
  ls::HookHandle bad = c.register_hook([](const ls::Tensor&) -> ls::Tensor { throw ls::InvalidArgument("stop"); });
  CHECK(!error_of([&] { (ls::sum(ls::linear(x, w)) + ls::sum(c * 2)).backward(); }).empty());
  bad.remove();
  w.set_grad({});
  ls::sum(ls::linear(x, w)).backward();
  CHECK(w.grad().raw_data() == bucket.views[0].raw_data());
  check_close(w.grad(), ls::sum(x, {0}).expand({3, 4}).contiguous(), "gradient");
}

// An operation writes the gradients of weight and bias to their views; the weight's is delivered first.
TEST_CASE("a backward inside another one leaves what the outer one has written to a view") {
  for (const bool with_views : {false, true}) {
    const ls::Tensor x = numbers({5, 3}), w = numbers({4, 3}, {.requires_grad = true});
    const ls::Tensor b = numbers({4}, {.requires_grad = true});
    const ls::Tensor w_view = ls::zeros({4, 3}), b_view = ls::zeros({4});
    if (with_views) set_gradient_view(w, w_view);
    if (with_views) set_gradient_view(b, b_view);
    bool has_run = false;
    const auto inner = [&](ls::autograd::Run&) {
      const ls::EnableGradGuard with_grad;
      if (!std::exchange(has_run, true)) ls::sum(b * 10).backward();
    };
    ls::HookHandle hook = ls::autograd::register_leaf_hook(w, inner);
    ls::sum(ls::linear(x, w, b)).backward();
    CHECK(b.grad().to_vector<double>() == std::vector<double>(4, 15));
    if (with_views) CHECK(same_bits(b_view, b.grad()));
    hook.remove();
  }
}

TEST_CASE("a backward that failed after it took a bucket view releases the view for the next one") {
  using ls::autograd::Gradients, ls::autograd::Needs;
  const ls::Tensor w = numbers({3, 2}, {.requires_grad = true}), x = numbers({4, 2});
  const Bucket bucket({w});
  const ls::Tensor broken =
      ls::autograd::record("broken", w.detach(), {w}, [](const ls::Tensor&, const Needs& needs) -> Gradients {
        REQUIRE(needs.view(0).defined());
        throw ls::InvalidArgument("stop");
      });
  CHECK_THROWS_AS(broken.backward(ls::ones({3, 2})), ls::InvalidArgument);
  ls::sum(ls::linear(x, w)).backward();
  check_at_home({w}, bucket);
  CHECK(gradient_copies(w) == 0);
}
