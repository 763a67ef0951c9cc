// Whole models, trained for ten steps, compared with PyTorch: losses of every step and final parameters.
#include "support.h"

namespace {

struct Mixed : nn::Module {
  nn::Linear& fc1 = add<nn::Linear>("fc1", 6, 8);
  nn::LayerNorm& norm = add<nn::LayerNorm>("norm", ls::Shape{8});
  nn::Linear& fc2 = add<nn::Linear>("fc2", 8, 4);
  ls::Tensor forward(const ls::Tensor& x) const override { return fc2(ls::gelu(norm(fc1(x)))); }
};

// A head that shares the embedding's weight.
struct Head : nn::Module {
  nn::Parameter& weight;
  nn::Parameter& bias;
  explicit Head(const nn::Parameter& tied)
      : weight(add_parameter("weight", tied)), bias(add_parameter("bias", ls::zeros({tied->size(0)}))) {}
  ls::Tensor forward(const ls::Tensor& x) const override { return ls::linear(x, weight, bias); }
};

struct Tied : nn::Module {
  nn::Embedding& embedding = add<nn::Embedding>("embedding", 12, 5);
  nn::LayerNorm& norm = add<nn::LayerNorm>("norm", ls::Shape{5});
  Head& head = add<Head>("head", embedding.weight);
  ls::Tensor forward(const ls::Tensor& x) const override { return head(norm(ls::mean(embedding(x), {1}))); }
};

template <class Model, class Optimizer, class Options>
void check_run(const ls::StateDict& dict, const std::string& prefix, const std::string& run, const Options& options) {
  INFO(prefix << run);
  Model model;
  model.to(prefix.find("f32") != std::string::npos ? ls::kFloat32 : ls::kFloat64);
  for (const auto& [name, p] : model.named_parameters()) p.master().detach().copy_(dict.at(prefix + "init/" + name));
  Optimizer optimizer(model.parameters(), options);
  const nn::CrossEntropyLoss criterion;
  const ls::Tensor xs = dict.at(prefix + "x"), targets = dict.at(prefix + "target");
  std::vector<ls::Tensor> losses;
  for (std::int64_t step = 0; step < xs.size(0); ++step) {
    const ls::Tensor loss = criterion(model(xs[step]), targets[step]);
    optimizer.zero_grad();
    loss.backward();
    if (run == "sgd_clip") nn::clip_grad_norm_(model.parameters(), 0.5);
    optimizer.step();
    losses.push_back(loss.detach());
  }
  check_close(ls::stack(losses), dict.at(prefix + run + "/losses"), "losses");
  for (const auto& [name, p] : model.named_parameters())
    check_close(p->detach(), dict.at(prefix + run + "/final/" + name), name);
}

template <class Model>
void check_model(const ls::StateDict& dict, const std::string& name) {
  for (const std::string& tag : float_tags()) {
    const std::string prefix = name + "." + tag + "/";
    for (const char* run : {"sgd", "sgd_clip"})
      check_run<Model, ls::optim::SGD>(dict, prefix, run, ls::optim::SGDOptions{.lr = 0.1, .momentum = 0.9});
    check_run<Model, ls::optim::AdamW>(dict, prefix, "adamw", ls::optim::AdamWOptions{.lr = 0.01, .weight_decay = 0.1});
  }
}

}  // namespace

TEST_CASE("a model of Linear, LayerNorm and GELU trains like PyTorch's") {
  check_model<Mixed>(golden("training"), "mixed");
}

TEST_CASE("a model with a tied weight trains like PyTorch's") { check_model<Tied>(golden("training"), "tied"); }
