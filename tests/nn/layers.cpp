#include "support.h"

#include <cmath>
#include <functional>

namespace {

using Forward = std::function<ls::Tensor(const ls::Tensor& x)>;

// Runs a case of layers.safetensors: sets the parameters, compares y and every gradient.
void check_case(const ls::StateDict& dict, const std::string& name, nn::Module& module) {
  for (const std::string& tag : float_tags()) {
    const std::string prefix = name + "." + tag + "/";
    INFO(prefix);
    load_case(module, dict, prefix, tag);
    check_step(module, dict, prefix, tolerance(dict.at(prefix + "y").dtype()));
  }
}

template <class M>
void check_case(const ls::StateDict& dict, const std::string& name, M&& module) {
  nn::Module& base = module;
  check_case(dict, name, base);
}

// Checks first and second derivatives of a module by its input and all its parameters.
void check_gradients(nn::Module& module, const ls::Shape& shape) {
  module.to(ls::kFloat64);
  std::vector<ls::Tensor> inputs = {ls::randn(shape, {.dtype = ls::kFloat64, .requires_grad = true})};
  for (const nn::Parameter& p : module.parameters()) inputs.push_back(p.master());
  const auto f = [&](const std::vector<ls::Tensor>& in) { return ls::sum(ls::tanh(module(in[0]))); };
  CHECK(ls::autograd::gradcheck(f, inputs, {.second_order = true}));
}

}  // namespace

TEST_CASE("layers give PyTorch's values and gradients") {
  const ls::StateDict dict = golden("layers");
  check_case(dict, "linear", nn::Linear(4, 3));
  check_case(dict, "linear_no_bias", nn::Linear(4, 3, {.bias = false}));
  check_case(dict, "linear_3d", nn::Linear(4, 5));
  check_case(dict, "linear_1d", nn::Linear(4, 5));
  check_case(dict, "layer_norm_1d", nn::LayerNorm({6}));
  check_case(dict, "layer_norm_2d", nn::LayerNorm({3, 4}));
  check_case(dict, "layer_norm_plain_eps_0.1", nn::LayerNorm({6}, {.eps = 0.1, .elementwise_affine = false}));
  check_case(dict, "embedding", nn::Embedding(5, 3));
}

TEST_CASE("LayerNorm computes its variance accurately for a large mean") {
  const ls::StateDict dict = golden("layers");
  const std::string prefix = "layer_norm_offset.f32/";
  nn::LayerNorm norm({6});
  for (const auto& [key, p] : norm.named_parameters()) p.master().detach().copy_(dict.at(prefix + key));
  // x has four digits before the point, so three remain for the deviations; these must not be lost.
  CHECK(ls::allclose(norm(dict.at(prefix + "x")).detach(), dict.at("layer_norm_offset.f64/y").to(ls::kFloat32), 1e-3,
                     1e-3));
  check_close(nn::LayerNorm({6}).weight->detach(), ls::ones({6}), "weight starts as 1");
}

TEST_CASE("activations give PyTorch's values and gradients") {
  const ls::StateDict dict = golden("layers");
  check_case(dict, "relu", nn::ReLU());
  check_case(dict, "sigmoid", nn::Sigmoid());
  check_case(dict, "tanh", nn::Tanh());
  check_case(dict, "gelu", nn::GELU());
  check_case(dict, "silu", nn::SiLU());
  check_case(dict, "leaky_relu_0.01", nn::LeakyReLU());
  check_case(dict, "leaky_relu_0.2", nn::LeakyReLU(0.2));
  check_case(dict, "softplus", nn::Softplus());
  check_case(dict, "softmax_dim0", nn::Softmax(0));
  check_case(dict, "softmax_dim1", nn::Softmax(1));
  check_case(dict, "log_softmax_dim0", nn::LogSoftmax(0));
  check_case(dict, "log_softmax_dim1", nn::LogSoftmax(1));
  check_case(dict, "softmax_large", nn::Softmax(1));
  check_case(dict, "softmax_minus_inf", nn::Softmax(1));
}

TEST_CASE("layers have the right first and second derivatives") {
  ls::manual_seed(2);
  nn::Linear linear(3, 2);
  check_gradients(linear, {4, 3});
  nn::LayerNorm norm({5});
  norm.weight.master().detach().copy_(ls::randn({5}));
  check_gradients(norm, {3, 5});
  nn::LayerNorm plain({2, 3}, {.elementwise_affine = false});
  check_gradients(plain, {2, 2, 3});
  nn::Sequential body(nn::Linear(3, 4), nn::GELU(), nn::LayerNorm({4}), nn::Linear(4, 2), nn::Softmax(-1));
  check_gradients(body, {2, 3});
  nn::Embedding table(4, 3);
  table.to(ls::kFloat64);
  const ls::Tensor index = ls::tensor({{0, 3}, {3, 1}});
  CHECK(ls::autograd::gradcheck([&](const std::vector<ls::Tensor>&) { return ls::sum(ls::tanh(table(index))); },
                                {table.weight.master()}, {.second_order = true}));
}

TEST_CASE("a model from PyTorch's file gives PyTorch's output") {
  struct Net : nn::Module {
    nn::Linear& fc1 = add<nn::Linear>("fc1", 4, 8);
    nn::Linear& fc2 = add<nn::Linear>("fc2", 8, 3);
    ls::Tensor forward(const ls::Tensor& x) const override { return fc2(ls::relu(fc1(x))); }
  } net;
  net.load_state_dict(golden("model_from_torch"));
  const ls::StateDict io = golden("model_from_torch_io");
  check_close(net(io.at("x")), io.at("y"), "y");
}

TEST_CASE("Linear starts within 1/sqrt(in) and fills that range") {
  ls::manual_seed(0);
  const nn::Linear layer(100, 200);
  for (const nn::Parameter& p : {layer.weight, layer.bias}) {
    CHECK(ls::max(p).item<double>() <= 0.1);
    CHECK(ls::min(p).item<double>() >= -0.1);
    CHECK(ls::max(p).item<double>() > 0.095);
    CHECK(std::abs(ls::mean(p).item<double>()) < 0.02);
  }
  CHECK(error_of([] { nn::Linear(-1, 2); }) == "Linear: sizes are in -1, out 2; neither may be negative");
}

TEST_CASE("Dropout scales the remaining elements, is reproducible, and does nothing in eval mode") {
  ls::manual_seed(5);
  nn::Dropout dropout(0.25);
  const ls::Tensor x = ls::ones({10000}, {.requires_grad = true});
  const ls::Tensor y = dropout(x);
  const double kept = ls::mean((y != 0.0).to(ls::kFloat32)).item<double>();
  CHECK(kept == doctest::Approx(0.75).epsilon(0.03));
  CHECK(ls::max(y).item<float>() == doctest::Approx(1 / 0.75f));
  ls::sum(y).backward();
  CHECK(ls::equal(x.grad(), y.detach()));  // the gradient uses the same mask
  ls::manual_seed(5);
  CHECK(ls::equal(dropout(x), y));
  CHECK_FALSE(ls::equal(dropout(x), y));
  dropout.eval();
  CHECK(ls::equal(dropout(x), x));
}

TEST_CASE("Dropout with p 0 and 1, and a p that is not a probability") {
  const ls::Tensor x = ls::ones({8});
  CHECK(ls::equal(nn::Dropout(0.0)(x), x));
  CHECK(ls::equal(nn::Dropout(1.0)(x), ls::zeros({8})));
  CHECK(error_of([] { nn::Dropout(1.5); }) == "Dropout: p is 1.5, expected 0 to 1");
  CHECK(error_of([] { nn::Dropout(NAN); }) == "Dropout: p is nan, expected 0 to 1");
}

TEST_CASE("Embedding names an index outside the table, and the dtypes it accepts") {
  const nn::Embedding table(4, 2);
  CHECK(error_of([&] {
          table(ls::tensor({1, 4}));
        }) == "Embedding(4, 2): index 4 is outside [0, 4): element 1 of the index, (2) i64 cpu");
  CHECK(error_of([&] {
          table(ls::tensor({{0}, {-1}}));
        }) == "Embedding(4, 2): index -1 is outside [0, 4): element 1 of the index, (2, 1) i64 cpu");
  CHECK(error_of([&] { table(ls::ones({2})); }) == "Embedding: the index is (2) f32 cpu, expected i64 or i32");
  CHECK(table(ls::tensor(2)).shape() == ls::Shape{2});
  CHECK(table(ls::tensor({{1}}).to(ls::kInt32)).shape() == ls::Shape{1, 1, 2});
  CHECK(table(ls::zeros({0, 3}, {.dtype = ls::kInt64})).shape() == ls::Shape{0, 3, 2});
}

TEST_CASE("LayerNorm names the actual and the expected sizes") {
  CHECK(error_of([] {
          nn::LayerNorm({3, 4})(ls::ones({2, 4}));
        }) == "layer_norm: x is (2, 4) f32 cpu, its last sizes should be (3, 4)");
  CHECK(error_of([] {
          nn::LayerNorm(4)(ls::ones({2, 3}));
        }) == "layer_norm: x is (2, 3) f32 cpu, its last sizes should be (4)");
}

TEST_CASE("Sequential runs its modules in order, grows, and is indexed") {
  nn::Sequential model;
  const ls::Tensor x = ls::full({1, 2, 2}, -1.0);
  CHECK(ls::equal(model(x), x));
  model.push_back(nn::Flatten());
  model.push_back(nn::ReLU());
  model.push_back(nn::Identity());
  CHECK(model.size() == 3);
  CHECK(ls::equal(model(x), ls::zeros({1, 4})));
  CHECK(model[1].type_name() == "ReLU");
  CHECK(error_of([&] { model[3]; }) == "Sequential: index 3 is outside [0, 3)");
  CHECK(nn::Flatten({.start_dim = 0})(x).shape() == ls::Shape{4});
  CHECK(nn::Flatten({.start_dim = 0, .end_dim = 1})(x).shape() == ls::Shape{2, 2});
}

TEST_CASE("initialisers fill the ranges of their papers") {
  ls::manual_seed(9);
  const ls::Tensor w = ls::zeros({50, 200}, {.requires_grad = true});  // fan_in 200, fan_out 50
  const auto bound = [&] { return ls::max(ls::abs(w)).item<double>(); };
  const auto deviation = [&] { return std::sqrt(ls::var(w).item<double>()); };
  nn::init::uniform_(w, -2, 2);
  CHECK((bound() <= 2 && bound() > 1.99));
  nn::init::normal_(w, 0, 3);
  CHECK(deviation() == doctest::Approx(3).epsilon(0.05));
  nn::init::xavier_uniform_(w);
  CHECK(bound() == doctest::Approx(std::sqrt(6.0 / 250)).epsilon(0.01));
  nn::init::xavier_normal_(w, 2.0);
  CHECK(deviation() == doctest::Approx(2 * std::sqrt(2.0 / 250)).epsilon(0.05));
  nn::init::kaiming_uniform_(w, {.a = std::sqrt(5.0)});
  CHECK(bound() == doctest::Approx(1 / std::sqrt(200.0)).epsilon(0.01));
  nn::init::kaiming_normal_(w, {.mode = nn::init::FanMode::kFanOut});
  CHECK(deviation() == doctest::Approx(std::sqrt(2.0 / 50)).epsilon(0.05));
  nn::init::ones_(w);
  CHECK(ls::equal(w, ls::ones({50, 200})));
  nn::init::zeros_(w);
  CHECK(bound() == 0);
  CHECK(contains(error_of([] { nn::init::kaiming_uniform_(ls::zeros({3})); }), "needs two or more dimensions"));
}
