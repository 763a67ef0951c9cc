// Layers and lists that a GPT needs: RMSNorm, ModuleList, tied weights.
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "support.h"

namespace {

void check_rms_norm(const std::string& name, nn::RMSNorm&& norm) {
  const ls::StateDict dict = golden("gpt");
  for (const std::string& tag : float_tags()) {
    const std::string prefix = name + "." + tag + "/";
    INFO(prefix);
    load_case(norm, dict, prefix, tag);
    check_step(norm, dict, prefix, tolerance(dict.at(prefix + "y").dtype()));
  }
}

struct Block : nn::Module {
  nn::Linear& fc;
  explicit Block(std::int64_t width) : fc(add<nn::Linear>("fc", width, width)) {}
  ls::Tensor forward(const ls::Tensor& x) const override { return x + ls::tanh(fc(x)); }
};

struct Stack : nn::Module {
  nn::Embedding& tokens;
  nn::ModuleList& blocks;
  nn::Linear& head;
  Stack(std::int64_t vocabulary, std::int64_t width, int depth)
      : tokens(add<nn::Embedding>("tokens", vocabulary, width)), blocks(add<nn::ModuleList>("blocks")),
        head(add<nn::Linear>("head", width, vocabulary, nn::LinearOptions{.bias = false})) {
    head.weight = tokens.weight;
    for (int i = 0; i < depth; ++i) blocks.push_back(Block(width));
  }
  ls::Tensor forward(const ls::Tensor& ids) const override {
    ls::Tensor x = tokens(ids);
    for (nn::Module& block : blocks) x = block(x);
    return head(x);
  }
};

std::vector<std::string> names(const nn::Module& module) {
  std::vector<std::string> list;
  for (const auto& [name, parameter] : module.named_parameters()) list.push_back(name);
  return list;
}

}  // namespace

TEST_CASE("RMSNorm gives PyTorch's values and gradients, with its default eps and others") {
  check_rms_norm("rms_norm_1d", nn::RMSNorm({6}));
  check_rms_norm("rms_norm_2d", nn::RMSNorm({3, 4}));
  check_rms_norm("rms_norm_plain_eps_0.1", nn::RMSNorm({6}, {.eps = 0.1, .elementwise_affine = false}));
  check_rms_norm("rms_norm_tiny", nn::RMSNorm({5}));
}

TEST_CASE("RMSNorm starts as 1, has no bias, and does not subtract the mean") {
  const nn::RMSNorm norm({4});
  CHECK(names(norm) == std::vector<std::string>{"weight"});
  CHECK(nn::RMSNorm({4}, {.elementwise_affine = false}).parameters().empty());
  CHECK(ls::allclose(norm(ls::tensor({3.0, 3.0, -3.0, 3.0})), ls::tensor({1.0, 1.0, -1.0, 1.0})));
}

TEST_CASE("RMSNorm of strided and of empty tensors, and of rows of any length") {
  const ls::TensorOptions f64 = {.dtype = ls::kFloat64};
  for (const std::int64_t n : {1, 3, 8, 17, 130, 3000}) {
    CAPTURE(n);
    const ls::Tensor x = numbers({n, 2}, f64), row = x.t().contiguous();
    const ls::Tensor want = row / ls::sqrt(ls::mean(row * row, {-1}, true) + 1e-3);
    check_close(ls::rms_norm(x.t(), {n}, {}, 1e-3), want, "strided");
  }
  CHECK(ls::rms_norm(ls::zeros({0, 4}), 4).shape() == ls::Shape{0, 4});
  const ls::Tensor weight = ls::ones({4}, {.requires_grad = true});
  ls::sum(ls::rms_norm(ls::zeros({0, 4}), 4, weight)).backward();
  CHECK(weight.grad().to_vector<double>() == std::vector<double>(4, 0));
}

TEST_CASE("errors of RMSNorm name it, and the sizes that do not fit") {
  CHECK(error_of([] {
          ls::rms_norm(ls::ones({2, 3}), 4);
        }) == "rms_norm: x is (2, 3) f32 cpu, its last sizes should be (4)");
  CHECK(contains(error_of([] { ls::rms_norm(ls::ones({2, 3}), 3, ls::ones({2})); }), "rms_norm: weight is (2) f32"));
  CHECK(contains(error_of([] { ls::rms_norm(ls::ones({2}, {.dtype = ls::kInt64}), 2); }), "rms_norm: needs f32"));
  CHECK(error_of([] { nn::RMSNorm(ls::Shape{}); }) == "RMSNorm: the shape to normalise over is empty");
}

TEST_CASE("a ModuleList names its modules by number and trains with the module above") {
  Stack model(7, 3, 2);
  CHECK(model.blocks.size() == 2);
  CHECK(model.blocks[1].name() == "1");
  CHECK(names(model) == std::vector<std::string>{"tokens.weight", "blocks.0.fc.weight", "blocks.0.fc.bias",
                                                 "blocks.1.fc.weight", "blocks.1.fc.bias"});
  std::vector<nn::Module*> visited;
  for (nn::Module& block : model.blocks) visited.push_back(&block);
  CHECK(visited == model.blocks.children());
  ls::sum(model(ls::tensor({0, 4, 2}))).backward();
  for (const nn::Parameter& parameter : model.parameters()) CHECK(parameter->grad().defined());
  model.eval();
  CHECK_FALSE(model.blocks[0].is_training());
  CHECK(warnings_of([&] { model(ls::tensor({0})); }).empty());
}

TEST_CASE("push_back takes a module or a unique_ptr and returns the module where it stays") {
  nn::ModuleList list(nn::Linear(2, 2), nn::ReLU());
  Block& moved = list.push_back(Block(2));
  Block& owned = list.push_back(std::make_unique<Block>(2));
  CHECK(&list[2] == &moved);
  CHECK(&list[3] == &owned);
  nn::ModuleList other = std::move(list);
  CHECK(other.size() == 4);
  CHECK(&other[3] == &owned);
  nn::Sequential body;
  body.push_back(std::make_unique<nn::Tanh>());
  CHECK(ls::equal(body(ls::zeros({2})), ls::zeros({2})));
  CHECK(nn::ModuleList().size() == 0);
  CHECK(error_of([&] { other.push_back(std::unique_ptr<Block>()); }) == "ModuleList: the child \"4\" is null");
  CHECK(error_of([&] { other[4]; }) == "ModuleList: index 4 is outside [0, 4)");
  CHECK(error_of([&] { body[-1]; }) == "Sequential: index -1 is outside [0, 1)");
  CHECK(
      contains(error_of([&] { other(ls::ones({2})); }), "ModuleList: forward(const Tensor&) const is not overridden"));
}

TEST_CASE("head.weight = tokens.weight ties the two: one parameter, saved under both names, moved as one") {
  auto first = std::make_unique<Stack>(7, 3, 1);
  Stack model = std::move(*first);
  first.reset();
  CHECK(model.head.weight == model.tokens.weight);
  CHECK(model.parameters().size() == 3);
  const ls::StateDict dict = model.state_dict();
  CHECK(dict.at("head.weight").raw_data() == dict.at("tokens.weight").raw_data());

  // The gradient is the sum over both uses.
  const ls::Tensor ids = ls::tensor({0, 4}), upstream = numbers({2, 7});
  model(ids).backward(upstream);
  const ls::Tensor tied = model.tokens.weight->grad();
  Stack apart(7, 3, 1);
  apart.head.weight = nn::Parameter(ls::zeros({7, 3}));
  CHECK(apart.parameters().size() == 4);
  apart.load_state_dict(dict);
  apart(ids).backward(upstream);
  check_close(tied, apart.tokens.weight->grad() + apart.head.weight->grad(), "gradient");

  model.to(ls::kFloat64);
  CHECK(model.head.weight->dtype() == ls::kFloat64);
  CHECK(model.head.weight->raw_data() == model.tokens.weight->raw_data());
}
