// Options of layers and losses, compared with PyTorch's.
#include <cmath>
#include <string>
#include <vector>

#include "support.h"

namespace {

// Runs a case of options.safetensors with a module that `make` returns.
template <class Make>
void check_case(const std::string& name, const Make& make) {
  const ls::StateDict dict = golden("options");
  for (const std::string& tag : float_tags()) {
    const std::string prefix = name + "." + tag + "/";
    INFO(prefix);
    auto module = make();
    load_case(module, dict, prefix, tag);
    check_step(module, dict, prefix, tag == "f32" ? Tolerance{1e-5, 2e-6} : Tolerance{1e-12, 1e-13});
  }
}

// Three steps of training and one in eval mode.
void check_batch_norm(const std::string& name, const nn::BatchNorm2dOptions& options) {
  const ls::StateDict dict = golden("options");
  for (const std::string& tag : float_tags()) {
    nn::BatchNorm2d module(3, options);
    load_case(module, dict, name + "." + tag + "/", tag);
    for (int step = 0; step < 4; ++step) {
      const std::string prefix = name + "." + tag + "/" + std::to_string(step) + "/";
      INFO(prefix);
      module.train(step < 3);
      check_step(module, dict, prefix, tag == "f32" ? Tolerance{1e-5, 2e-5} : Tolerance{1e-12, 1e-12});
      for (const auto& [key, buffer] : module.named_buffers()) check_close(buffer.tensor(), dict.at(prefix + key), key);
    }
  }
}

}  // namespace

TEST_CASE("options of layers give PyTorch's values and gradients") {
  check_case("gelu_tanh", [] { return nn::GELU({.approximate = nn::Gelu::kTanh}); });
  check_case("layer_norm_no_bias", [] { return nn::LayerNorm({6}, {.bias = false}); });
  check_case("embedding_padding", [] { return nn::Embedding(5, 3, {.padding_idx = 1}); });
  check_case("embedding_padding", [] { return nn::Embedding(5, 3, {.padding_idx = -4}); });
  check_case("conv2d_same", [] { return nn::Conv2d(3, 4, 3, {.padding = nn::Padding::kSame}); });
  check_case("conv2d_same_even", [] { return nn::Conv2d(3, 4, {2, 4}, {.padding = nn::Padding::kSame}); });
  check_case("conv2d_same_dilation", [] {
    return nn::Conv2d(3, 4, {2, 3}, {.padding = nn::Padding::kSame, .dilation = {3, 2}});
  });
  check_case("conv2d_valid", [] { return nn::Conv2d(3, 4, {3, 2}, {.padding = nn::Padding::kValid}); });
}

TEST_CASE("GELU with tanh has the right first and second derivatives") {
  const ls::Tensor x = ls::linspace(-4, 4, 9, {.dtype = ls::kFloat64, .requires_grad = true});
  const auto f = [](const std::vector<ls::Tensor>& in) { return ls::sum(ls::exp(ls::gelu_tanh(in[0]))); };
  CHECK(ls::autograd::gradcheck(f, {x}, {.second_order = true}));
}

TEST_CASE("LayerNorm has the parameters that its options ask for") {
  CHECK(nn::LayerNorm({6}).parameters().size() == 2);
  CHECK(nn::LayerNorm({6}, {.bias = false}).parameters().size() == 1);
  CHECK(nn::LayerNorm({6}, {.elementwise_affine = false}).parameters().empty());
}

TEST_CASE("the padding row of an Embedding starts as zero, can be set, and gets no gradient") {
  const nn::Embedding table(4, 2, {.padding_idx = 2});
  CHECK(table.weight->select(0, 2).to_vector<double>() == std::vector<double>{0, 0});
  CHECK(ls::min(ls::abs(table.weight->narrow(0, 0, 2))).item<double>() > 0);
  table.weight->detach().select(0, 2).fill_(5);
  const ls::Tensor y = table(ls::tensor({2, 0, 2}));
  CHECK(y[0].to_vector<double>() == std::vector<double>{5, 5});
  ls::sum(y * kInf).backward();  // where() stops the infinite gradient, a factor of 0 would not
  CHECK(table.weight->grad().to_vector<double>() == std::vector<double>{kInf, kInf, 0, 0, 0, 0, 0, 0});
  CHECK(error_of([] { nn::Embedding(4, 2, {.padding_idx = 4}); }) == "Embedding: padding_idx is 4, expected -4 to 3");
  CHECK(error_of([] { nn::Embedding(4, 2, {.padding_idx = -5}); }) == "Embedding: padding_idx is -5, expected -4 to 3");
}

TEST_CASE("an error inside an Embedding has its path in the model") {
  struct Net : nn::Module {
    nn::Embedding& words = add<nn::Embedding>("words", 10, 4);
    ls::Tensor forward(const ls::Tensor& x) const override { return words(x); }
  } net;
  CHECK(error_of([&] {
          net(ls::tensor({{1, 10}, {3, 4}}));
        }) == "words: Embedding(10, 4): index 10 is outside [0, 10): element 1 of the index, (2, 2) i64 cpu");
}

TEST_CASE("Conv2d refuses the padding kSame with a stride") {
  CHECK(error_of([] {
          nn::Conv2d(1, 1, 3, {.stride = {1, 2}, .padding = nn::Padding::kSame});
        }) == "Conv2d: .padding is Padding::kSame and .stride is 1 x 2; expected stride 1, or the padding in numbers");
}

TEST_CASE("BatchNorm2d with a cumulative average, and without running statistics, gives PyTorch's values") {
  check_batch_norm("batch_norm_cumulative", {.momentum = std::nullopt});
  check_batch_norm("batch_norm_untracked", {.track_running_stats = false});
  CHECK(nn::BatchNorm2d(3, {.track_running_stats = false}).state_dict().size() == 2);
}

TEST_CASE("weights of BCELoss and BCEWithLogitsLoss give PyTorch's values and gradients") {
  const ls::StateDict dict = golden("options");
  for (const std::string& tag : float_tags()) {
    for (const std::string name : {"bce_weight", "bce_with_logits_weight"}) {
      const std::string prefix = name + "." + tag + "/";
      INFO(prefix);
      const ls::Tensor target = dict.at(prefix + "target"), weight = dict.at(prefix + "weight");
      const auto loss = [&](const ls::Tensor& x, nn::Reduction r) {
        if (name == "bce_weight") return nn::BCELoss({.reduction = r, .weight = weight})(x, target);
        return nn::BCEWithLogitsLoss({.reduction = r, .pos_weight = dict.at(prefix + "pos_weight"), .weight = weight})(
            x, target);
      };
      check_close(loss(dict.at(prefix + "x"), nn::Reduction::kNone), dict.at(prefix + "none"), "none");
      for (const auto& [key, reduction] : {std::pair{"mean", nn::Reduction::kMean}, {"sum", nn::Reduction::kSum}}) {
        const ls::Tensor x = dict.at(prefix + "x").clone().requires_grad_();
        const ls::Tensor value = loss(x, reduction);
        check_close(value, dict.at(prefix + key), key);
        value.backward();
        check_close(x.grad(), dict.at(prefix + "grad_x_" + key), key);
      }
    }
  }
  CHECK(error_of([] {
          nn::BCELoss({.weight = ls::ones({3})})(ls::ones({2, 2}), ls::ones({2, 2}));
        }) == "bce_loss: shapes (2, 2) and (3) do not broadcast");
  CHECK(contains(error_of([] {
                   nn::BCELoss({.weight = ls::ones({2, 2})})(ls::ones({2}), ls::ones({2}));
                 }),
                 "bce_loss: weight is (2, 2) f32 cpu, which does not broadcast to x (2) f32 cpu"));
}

TEST_CASE("clip_grad_norm_ clips norms of other orders as PyTorch does") {
  const ls::StateDict dict = golden("options");
  for (const std::string& tag : float_tags()) {
    for (const auto& [name, p] : {std::pair{"clip_1", 1.0}, {"clip_3", 3.0}, {"clip_inf", kInf}}) {
      const std::string prefix = std::string(name) + "." + tag + "/";
      INFO(prefix);
      std::vector<nn::Parameter> parameters;
      for (const char* key : {"before0", "before1"}) {
        parameters.emplace_back(ls::zeros_like(dict.at(prefix + key)));
        parameters.back()->set_grad(dict.at(prefix + key).clone());
      }
      const double norm = nn::clip_grad_norm_(parameters, 0.5, p);
      CHECK(norm == doctest::Approx(dict.at(prefix + "norm").item<double>()).epsilon(tag == "f32" ? 1e-6 : 1e-12));
      check_close(parameters[0]->grad(), dict.at(prefix + "after0"), "after0");
      check_close(parameters[1]->grad(), dict.at(prefix + "after1"), "after1");
    }
  }
}

TEST_CASE("clip_grad_norm_ refuses a norm that is not finite only if asked to, and then changes nothing") {
  nn::Parameter p(ls::zeros({2}));
  for (const double norm_type : {1.0, 2.0, kInf}) {
    p->set_grad(ls::tensor({1.0, kNan}));
    CHECK(contains(error_of([&] { nn::clip_grad_norm_({p}, 1.0, norm_type, true); }), "is nan"));
    CHECK(p->grad()[0].item<double>() == 1);
    CHECK(std::isnan(nn::clip_grad_norm_({p}, 1.0, norm_type)));
    p->set_grad(ls::tensor({1.0, -kInf}));
    CHECK(contains(error_of([&] { nn::clip_grad_norm_({p}, 1.0, norm_type, true); }), "is inf"));
  }
  CHECK(contains(error_of([&] { nn::clip_grad_norm_({p}, 1.0, 0.0); }), "norm_type is 0, expected a number above 0"));
}

TEST_CASE("kaiming initialisation has PyTorch's gain for every nonlinearity") {
  using nn::init::Nonlinearity;
  CHECK(nn::init::calculate_gain(Nonlinearity::kLinear) == 1);
  CHECK(nn::init::calculate_gain(Nonlinearity::kSigmoid) == 1);
  CHECK(nn::init::calculate_gain(Nonlinearity::kTanh) == 5.0 / 3);
  CHECK(nn::init::calculate_gain(Nonlinearity::kReLU, 3) == std::sqrt(2.0));
  CHECK(nn::init::calculate_gain(Nonlinearity::kLeakyReLU) == std::sqrt(2 / (1 + 0.01 * 0.01)));
  CHECK(nn::init::calculate_gain(Nonlinearity::kLeakyReLU, 3) == std::sqrt(0.2));
  CHECK(nn::init::calculate_gain(Nonlinearity::kSELU) == 0.75);
  const ls::Tensor w = ls::empty({50, 200});
  ls::manual_seed(3);
  nn::init::kaiming_uniform_(w, {.a = 7, .nonlinearity = Nonlinearity::kTanh});
  const double largest = ls::max(ls::abs(w)).item<double>(), bound = 5.0 / 3 * std::sqrt(3.0 / 200);
  CHECK((largest <= bound && largest > 0.99 * bound));
}
