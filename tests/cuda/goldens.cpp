// PyTorch's values and gradients on cuda:0: layers, losses, and a training, from the golden files of the CPU's tests.
#include <functional>
#include <memory>

#include "tests/cuda/host_accelerator.h"
#include "tests/support/testing.h"

namespace {

namespace nn = ls::nn;

const ls::Device kDevice("cuda:0");

Tolerance on_device(ls::DType dtype) {
  return dtype == ls::kFloat32 ? Tolerance{2e-5, 3e-5} : dtype == ls::kFloat64 ? Tolerance{1e-11, 1e-11} : Tolerance{};
}

void check(const ls::Tensor& have, const ls::Tensor& want, const std::string& what) {
  CHECK(have.device() == kDevice);
  check_close(have.detach().to("cpu"), want, what, on_device(want.dtype()));
}

void load(nn::Module& module, const ls::StateDict& dict, const std::string& prefix) {
  module.to(prefix.find(".f32/") != std::string::npos ? ls::kFloat32 : ls::kFloat64);
  module.to(kDevice);
  for (const auto& [key, p] : module.named_parameters()) p.master().detach().copy_(dict.at(prefix + key));
}

// Compares y and the gradients of one step of the module.
void check_step(nn::Module& module, const ls::StateDict& dict, const std::string& prefix) {
  INFO(prefix);
  module.zero_grad();
  const ls::Tensor x = dict.at(prefix + "x").to(kDevice);
  if (x.is_floating_point()) x.requires_grad_();
  const ls::Tensor y = module(x);
  check(y, dict.at(prefix + "y"), "y");
  y.backward(dict.at(prefix + "grad_y").to(kDevice));
  if (x.is_floating_point()) check(x.grad(), dict.at(prefix + "grad_x"), "grad_x");
  for (const auto& [key, p] : module.named_parameters()) check(p->grad(), dict.at(prefix + "grad_" + key), key);
}

template <class M>
void check_layer(const ls::StateDict& dict, const std::string& name, M&& module) {
  for (const std::string& tag : float_tags()) {
    load(module, dict, name + "." + tag + "/");
    check_step(module, dict, name + "." + tag + "/");
  }
}

using LossFunction = std::function<ls::Tensor(const ls::Tensor& x, const ls::Tensor& target)>;

void check_loss(const ls::StateDict& dict, const std::string& name, const LossFunction& loss) {
  for (const std::string& tag : float_tags()) {
    const std::string prefix = name + "." + tag + "/";
    INFO(prefix);
    const ls::Tensor x = dict.at(prefix + "x").to(kDevice);
    x.requires_grad_();
    const ls::Tensor value = loss(x, dict.at(prefix + "target").to(kDevice));
    check(value, dict.at(prefix + "mean"), "mean");
    value.backward();
    check(x.grad(), dict.at(prefix + "grad_x_mean"), "grad_x_mean");
  }
}

struct Mixed : nn::Module {
  nn::Linear& fc1 = add<nn::Linear>("fc1", 6, 8);
  nn::LayerNorm& norm = add<nn::LayerNorm>("norm", ls::Shape{8});
  nn::Linear& fc2 = add<nn::Linear>("fc2", 8, 4);
  ls::Tensor forward(const ls::Tensor& x) const override { return fc2(ls::gelu(norm(fc1(x)))); }
};

template <class Optimizer, class Options>
void check_training(const std::string& run, const Options& options) {
  const ls::StateDict dict = golden("training");
  for (const std::string& tag : float_tags()) {
    const std::string prefix = "mixed." + tag + "/";
    INFO(prefix << run);
    Mixed model;
    model.to(tag == "f32" ? ls::kFloat32 : ls::kFloat64);
    model.to(kDevice);
    for (const auto& [name, p] : model.named_parameters()) p.master().detach().copy_(dict.at(prefix + "init/" + name));
    Optimizer optimizer(model.parameters(), options);
    const ls::Tensor xs = dict.at(prefix + "x").to(kDevice), targets = dict.at(prefix + "target").to(kDevice);
    std::vector<ls::Tensor> losses;
    for (std::int64_t step = 0; step < xs.size(0); ++step) {
      const ls::Tensor loss = nn::cross_entropy(model(xs[step]), targets[step]);
      optimizer.zero_grad();
      loss.backward();
      optimizer.step();
      losses.push_back(loss.detach());
    }
    check(ls::stack(losses), dict.at(prefix + run + "/losses"), "losses");
    for (const auto& [name, p] : model.named_parameters())
      check(p->detach(), dict.at(prefix + run + "/final/" + name), name);
  }
}

}  // namespace

TEST_CASE("layers and activations give PyTorch's values and gradients on a device") {
  const TestDevices devices;
  const ls::StateDict dict = golden("layers");
  check_layer(dict, "linear", nn::Linear(4, 3));
  check_layer(dict, "linear_no_bias", nn::Linear(4, 3, {.bias = false}));
  check_layer(dict, "linear_3d", nn::Linear(4, 5));
  check_layer(dict, "layer_norm_1d", nn::LayerNorm({6}));
  check_layer(dict, "layer_norm_2d", nn::LayerNorm({3, 4}));
  check_layer(dict, "embedding", nn::Embedding(5, 3));
  check_layer(dict, "relu", nn::ReLU());
  check_layer(dict, "sigmoid", nn::Sigmoid());
  check_layer(dict, "tanh", nn::Tanh());
  check_layer(dict, "gelu", nn::GELU());
  check_layer(dict, "silu", nn::SiLU());
}

TEST_CASE("recurrent layers with lengths give PyTorch's values and gradients on a device") {
  const TestDevices devices;
  const ls::StateDict dict = golden("recurrent");
  const auto check_recurrent = [&](const std::string& prefix, nn::Recurrent& layer, bool has_c) {
    INFO(prefix);
    load(layer, dict, prefix);
    layer.zero_grad();
    const auto leaf = [&](const std::string& key) { return dict.at(prefix + key).to(kDevice).requires_grad_(); };
    const ls::Tensor x = leaf("x"), h = leaf("start_h"), c = has_c ? leaf("start_c") : ls::Tensor();
    const nn::RecurrentOutput out =
        layer.forward_state(x, {.h = h, .c = c}, {.lengths = dict.at("lengths").to(kDevice)});
    const auto part = [&](const ls::Tensor& result, const std::string& key) {
      check(result, dict.at(prefix + key), key);
      return ls::sum(result * dict.at(prefix + "grad_" + key).to(kDevice));
    };
    ls::Tensor total = part(out.y, "y") + part(out.state.h, "h");
    if (has_c) total = total + part(out.state.c, "c");
    total.backward();
    check(x.grad(), dict.at(prefix + "grad_x"), "grad_x");
    check(h.grad(), dict.at(prefix + "grad_start_h"), "grad_start_h");
    if (has_c) check(c.grad(), dict.at(prefix + "grad_start_c"), "grad_start_c");
    for (const auto& [key, p] : layer.named_parameters()) check(p->grad(), dict.at(prefix + "grad_" + key), key);
  };
  const nn::RecurrentOptions both{.batch_first = true, .bidirectional = true};
  for (const std::string& tag : float_tags()) {
    nn::LSTM lstm(3, 2, both);
    nn::GRU gru(3, 2, both);
    check_recurrent("lstm_both." + tag + "/", lstm, true);
    check_recurrent("gru_both." + tag + "/", gru, false);
  }
}

TEST_CASE("image layers give PyTorch's values and gradients on a device") {
  const TestDevices devices;
  const ls::StateDict dict = golden("images");
  using Conv = nn::Conv2dOptions;
  check_layer(dict, "conv2d", nn::Conv2d(3, 4, 3));
  check_layer(dict, "conv2d_no_bias", nn::Conv2d(3, 2, 2, Conv{.bias = false}));
  check_layer(dict, "conv2d_stride_padding", nn::Conv2d(3, 4, 3, Conv{.stride = 2, .padding = 1}));
  check_layer(dict, "conv2d_pairs", nn::Conv2d(2, 3, ls::Size2d{3, 2}, Conv{.stride = {2, 1}, .padding = {2, 1}}));
  check_layer(dict, "conv2d_dilation", nn::Conv2d(2, 3, 3, Conv{.padding = {2, 1}, .dilation = {2, 3}}));
  check_layer(dict, "conv2d_groups", nn::Conv2d(4, 6, 3, Conv{.padding = 1, .groups = 2}));
  check_layer(dict, "conv2d_1x1", nn::Conv2d(5, 3, 1));
  check_layer(dict, "max_pool2d", nn::MaxPool2d(2));
  check_layer(dict, "max_pool2d_overlap", nn::MaxPool2d(3, nn::MaxPool2dOptions{.stride = 2, .padding = 1}));
  check_layer(dict, "max_pool2d_nan_and_minus_inf", nn::MaxPool2d(2));
  check_layer(dict, "avg_pool2d", nn::AvgPool2d(2));
  check_layer(dict, "avg_pool2d_overlap", nn::AvgPool2d(3, nn::AvgPool2dOptions{.stride = 2, .padding = 1}));
}

TEST_CASE("losses give PyTorch's values and gradients on a device") {
  const TestDevices devices;
  const ls::StateDict dict = golden("losses");
  const auto with = [](const auto& criterion) {
    return [criterion](const ls::Tensor& x, const ls::Tensor& target) { return criterion(x, target); };
  };
  for (const char* name : {"bce", "bce_soft_target", "bce_edges"}) check_loss(dict, name, with(nn::BCELoss()));
  for (const char* name : {"bce_with_logits", "bce_with_logits_edges"})
    check_loss(dict, name, with(nn::BCEWithLogitsLoss()));
  check_loss(dict, "mse", with(nn::MSELoss()));
  check_loss(dict, "l1", with(nn::L1Loss()));
  for (const char* name : {"ce", "ce_edges", "ce_ignore_default", "ce_probabilities", "ce_2d"})
    check_loss(dict, name, with(nn::CrossEntropyLoss()));
}

TEST_CASE("a model trains like PyTorch's on a device") {
  const TestDevices devices;
  check_training<ls::optim::SGD>("sgd", ls::optim::SGDOptions{.lr = 0.1, .momentum = 0.9});
  check_training<ls::optim::AdamW>("adamw", ls::optim::AdamWOptions{.lr = 0.01, .weight_decay = 0.1});
}
