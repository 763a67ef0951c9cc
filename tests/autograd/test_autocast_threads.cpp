// Autocast: which operations it converts, its scope, and what inherits the mode.
#include <functional>
#include <map>
#include <thread>

#include "tests/support/testing.h"

namespace {

const ls::DType kHalves[] = {ls::kBFloat16, ls::kFloat16};

std::string dtype_of(const ls::Tensor& x) { return ls::name(x.dtype()); }

// A model with every kind of operation: products, convolution, attention, norms, pointwise functions, a loss.
struct Model : ls::nn::Module {
  ls::nn::Conv2d& conv = add("conv", ls::nn::Conv2d(1, 4, 3, {.padding = 1}));
  ls::nn::LayerNorm& norm = add<ls::nn::LayerNorm>("norm", 16);
  ls::nn::MultiheadAttention& attention = add<ls::nn::MultiheadAttention>("attention", 16, 2);
  ls::nn::Dropout& dropout = add<ls::nn::Dropout>("dropout", 0.2);
  ls::nn::Linear& head = add<ls::nn::Linear>("head", 16, 5);
  bool recompute = false;

  ls::Tensor forward(const ls::Tensor& images) const override {  // (batch, 1, 4, 4) -> (batch, 5)
    const auto block = [this](const ls::Tensor& x) { return x + dropout(ls::gelu(attention(norm(x)))); };
    const ls::Tensor x = conv(images).flatten(2);  // (batch, 4, 16)
    return head(ls::mean(recompute ? ls::autograd::checkpoint(block, x) : block(x), {1}));
  }
};

// The gradients of a step. Backward runs under the guard if `backward_inside`.
std::vector<ls::Tensor> gradients_of_step(bool recompute, bool backward_inside) {
  ls::manual_seed(5);
  Model model;
  model.recompute = recompute;
  std::optional<ls::AutocastGuard> autocast(ls::kBFloat16);
  const ls::Tensor y = model(numbers({6, 1, 4, 4}));
  CHECK(dtype_of(y) == "bf16");
  const ls::Tensor loss = ls::nn::cross_entropy(y, ls::tensor({0, 1, 2, 3, 4, 0}));
  CHECK(dtype_of(loss) == "f32");
  if (!backward_inside) autocast.reset();
  loss.backward();
  std::vector<ls::Tensor> gradients;
  for (const ls::nn::Parameter& parameter : model.parameters()) gradients.push_back(parameter->grad());
  return gradients;
}

void check_same_gradients(const std::vector<ls::Tensor>& have, const std::vector<ls::Tensor>& want) {
  REQUIRE(have.size() == want.size());
  for (std::size_t i = 0; i < have.size(); ++i) CHECK(same_bits(have[i], want[i]));
}

}  // namespace

TEST_CASE("autocast converts the operands of products, and f16 and bf16 operands of sums, norms and losses") {
  const ls::Tensor x = numbers({3, 4}), w = numbers({5, 4}), image = numbers({1, 2, 5, 5}), q = numbers({2, 3, 4});
  const ls::Tensor index = ls::zeros({3, 4}, {.dtype = ls::kInt64});
  for (const ls::DType dtype : kHalves) {
    const ls::Tensor h = x.to(dtype);
    const ls::AutocastGuard autocast(dtype);
    const std::map<std::string, ls::Tensor> products = {
        {"matmul", ls::matmul(x, w.t())},
        {"matmul of both", ls::matmul(h, w.t())},
        {"linear", ls::linear(x, w, ls::ones({5}))},
        {"mm", ls::mm(x, w.t())},
        {"addmm", ls::addmm(ls::ones({5}), x, w.t())},
        {"addmm without x", ls::addmm(ls::ones({5}), x, w.t(), 0)},
        {"baddbmm", ls::baddbmm(ls::ones({5}), q, q.transpose(1, 2).narrow(2, 0, 1).expand({2, 4, 5}))},
        {"conv_transpose2d", ls::conv_transpose2d(image, ls::ones({2, 1, 2, 2}), ls::ones({1}))},
        {"einsum", ls::einsum("ij,kj->ik", {x, w})},
        {"conv2d", ls::conv2d(image, ls::ones({1, 2, 2, 2}), ls::ones({1}))},
        {"attention", ls::scaled_dot_product_attention(q, q.to(ls::kFloat16), q, {.attn_mask = ls::zeros({3, 3})})},
        {"gelu", ls::gelu(h)},  // other operations promote
        {"add", h + h},
        {"amax", ls::amax(h)},
        {"cat", ls::cat({h, h})}};
    for (const auto& each : products) CHECK_MESSAGE(each.second.dtype() == dtype, each.first);
    const std::map<std::string, ls::Tensor> wide = {
        {"sum", ls::sum(h)},
        {"mean", ls::mean(h, {0})},
        {"cumsum", ls::cumsum(h, 0)},
        {"norm", ls::norm(h, 1)},
        {"var", ls::var(h)},
        {"std", ls::std(h)},
        {"softmax", ls::softmax(h, 0)},
        {"log_softmax", ls::log_softmax(h, 0)},
        {"logsumexp", ls::logsumexp(h, {0})},
        {"layer_norm", ls::layer_norm(h, {4}, ls::ones({4}))},
        {"rms_norm", ls::rms_norm(h, {4}, ls::ones({4}))},
        {"batch_norm", ls::batch_norm(h, {}, {}, ls::zeros({4}), ls::ones({4}), true)},
        {"mse_loss", ls::nn::mse_loss(h, x)},
        {"l1_loss", ls::nn::l1_loss(x, h)},
        {"bce", ls::nn::binary_cross_entropy(ls::sigmoid(h), ls::sigmoid(x))},
        {"bce with logits", ls::nn::binary_cross_entropy_with_logits(h, x, {.pos_weight = ls::ones({4})})},
        {"cross_entropy", ls::nn::cross_entropy(h, ls::tensor({0, 1, 2}), {.weight = ls::ones({4})})},
        {"nll_loss", ls::nn::nll_loss(h, ls::tensor({0, 1, 2}))},
        {"add", h + x},
        {"dot", ls::dot(x[0], x[1])},
        {"outer", ls::outer(x[0], x[1])},
        {"cat", ls::cat({h, x})},
        {"scatter_add", ls::scatter_add(x, 0, index, h)}};
    for (const auto& each : wide) CHECK_MESSAGE(dtype_of(each.second) == "f32", each.first);
    CHECK(same_bits(products.at("matmul"), ls::matmul(h, w.to(dtype).t())));
    CHECK(same_bits(products.at("addmm"), ls::addmm(ls::ones({5}, {.dtype = dtype}), h, w.to(dtype).t())));
    CHECK(ls::dot(h[0], h[1]).dtype() == dtype);
    CHECK(same_bits(wide.at("softmax"), ls::softmax(h.to(ls::kFloat32), 0)));
    const ls::Tensor f64 = x.to(ls::kFloat64);
    CHECK(dtype_of(ls::matmul(f64, f64.t())) == "f64");
    CHECK(dtype_of(ls::sum(f64)) == "f64");
    CHECK(dtype_of(ls::matmul(index, index.t())) == "i64");
  }
}

TEST_CASE("the guard restores the previous mode, nests, and turns autocast off") {
  const ls::Tensor x = numbers({2, 2});
  const auto product = [&] { return dtype_of(ls::matmul(x, x)); };
  CHECK(!ls::is_autocast_enabled());
  CHECK(product() == "f32");
  {
    const ls::AutocastGuard outer(ls::kBFloat16);
    CHECK(ls::autocast_dtype() == ls::kBFloat16);
    CHECK(product() == "bf16");
    {
      const ls::AutocastGuard inner(ls::kFloat16);
      CHECK(product() == "f16");
      const ls::AutocastGuard off(ls::kBFloat16, /*enabled=*/false);
      CHECK(!ls::is_autocast_enabled());
      CHECK(product() == "f32");
    }
    try {
      const ls::AutocastGuard inner(ls::kFloat16);
      throw 1;
    } catch (int) {
    }
    CHECK(product() == "bf16");
    CHECK(error_of([] { const ls::AutocastGuard wrong(ls::kFloat32); }) ==
          "AutocastGuard: dtype is f32, expected bf16 or f16; to turn autocast off, pass enabled = false");
    CHECK(product() == "bf16");
  }
  CHECK(product() == "f32");
}

TEST_CASE("gradients of f32 parameters are f32, and backward runs without autocast") {
  const std::vector<ls::Tensor> want = gradients_of_step(false, false);
  for (const ls::Tensor& gradient : want) CHECK(dtype_of(gradient) == "f32");
  check_same_gradients(gradients_of_step(false, true), want);

  struct Product : ls::autograd::Function<Product> {
    static ls::Tensor forward(ls::autograd::Context&, const ls::Tensor& x) { return ls::matmul(x, x); }
    static ls::autograd::Gradients backward(ls::autograd::Context&, const ls::Tensor& grad) {
      CHECK(!ls::is_autocast_enabled());
      return {grad};
    }
  };
  const ls::AutocastGuard autocast(ls::kBFloat16);
  ls::sum(Product::apply(numbers({2, 2}, {.requires_grad = true}))).backward();
  CHECK(ls::is_autocast_enabled());
}

TEST_CASE("checkpoint recomputes under the autocast mode of forward") {
  const std::vector<ls::Tensor> want = gradients_of_step(false, false);
  check_same_gradients(gradients_of_step(true, false), want);
  check_same_gradients(gradients_of_step(true, true), want);
}

TEST_CASE("a gradient passes through a conversion into its bucket view without a further copy") {
  ls::nn::Linear model(3, 2);
  ls::parallel::InitOptions options{.backend = "local", .world_size = 1, .rank = 0};
  options.store = std::make_shared<ls::parallel::InProcessStore>();
  ls::parallel::DistributedDataParallel ddp(model, ls::parallel::init_process_group(options));
  std::optional<ls::AutocastGuard> autocast(ls::kBFloat16);
  const ls::Tensor loss = ls::mean(ddp(numbers({4, 3})));
  autocast.reset();
  loss.backward();
  CHECK(dtype_of(model.weight->grad()) == "f32");
  CHECK(ddp.stats().copies == 0);
}

TEST_CASE("replicas and loader workers inherit the mode, other threads do not") {
  struct Modes : ls::data::Dataset {
    std::int64_t size() const override { return 8; }
    ls::data::Example get(std::int64_t) const override {
      return {ls::tensor({ls::is_autocast_enabled()}), ls::tensor({0.0})};
    }
  };
  ls::nn::Linear model(2, 2);
  ls::parallel::DataParallel parallel(model, {"cpu:0", "cpu:1", "cpu:2"});
  for (const bool enabled : {true, false}) {
    const ls::AutocastGuard autocast(ls::kBFloat16, enabled);
    CHECK(dtype_of(parallel(numbers({6, 2}))) == (enabled ? "bf16" : "f32"));
    for (const std::int64_t workers : {0, 2}) {
      ls::data::DataLoader loader(std::make_shared<Modes>(), {.batch_size = 4, .num_workers = workers});
      for (const auto& [x, y] : loader) CHECK(ls::equal(x, ls::full({4, 1}, enabled)));
    }
    bool other = true;
    std::thread([&other] { other = ls::is_autocast_enabled(); }).join();
    CHECK(!other);
  }
}

TEST_CASE("under autocast, attention computes its scores in f32 also with a mask that requires grad") {
  const ls::AutocastGuard autocast(ls::kFloat16);
  const ls::Tensor q = ls::full({3, 64}, 200.0), v = ls::randn({3, 4});  // scores of 320,000, infinite in f16
  const ls::Tensor mask = ls::zeros({3, 3}), learned = ls::zeros({3, 3}).requires_grad_();
  const ls::Tensor fixed = ls::scaled_dot_product_attention(q, q, v, {.attn_mask = mask}),
                   trained = ls::scaled_dot_product_attention(q, q, v, {.attn_mask = learned});
  CHECK(ls::allclose(trained.to(ls::kFloat32), fixed.to(ls::kFloat32), 1e-3, 1e-3));
}

TEST_CASE("under autocast, norms and losses take f32 input with bf16 parameters") {
  const ls::Tensor x = ls::randn({4, 6}), weight = ls::full({6}, 1.5, {.dtype = ls::kBFloat16});
  const ls::Tensor labels = ls::tensor({0, 1, 2, 3});
  const ls::AutocastGuard autocast(ls::kBFloat16);
  CHECK(ls::allclose(ls::layer_norm(x, {6}, weight), ls::layer_norm(x, {6}, weight.to(ls::kFloat32))));
  CHECK(ls::allclose(ls::rms_norm(x, {6}, weight), ls::rms_norm(x, {6}, weight.to(ls::kFloat32))));
  CHECK(ls::allclose(ls::nn::cross_entropy(x, labels, {.weight = weight}),
                     ls::nn::cross_entropy(x, labels, {.weight = weight.to(ls::kFloat32)})));
}
