// interop/libtorch.h: programs in LibTorch's spelling give the results of the same programs in Lockstep's.
#include <lockstep/interop/libtorch.h>

#include <filesystem>
#include <set>

#include "tests/support/testing.h"

namespace torch = lockstep::libtorch;
using ls::Tensor;

namespace {

// As in LibTorch's programs: members are holders, and forward is neither const nor virtual.
struct BlockImpl : torch::nn::Module {
  BlockImpl(int in, int out)
      : scale(register_parameter("scale", torch::ones({out}))), fc(torch::nn::LinearOptions(in, out).bias(false)),
        drop(torch::nn::DropoutOptions().p(0.25)) {
    register_module("fc", fc);
    register_module("drop", drop);
  }
  using torch::nn::Module::forward;  // no warning about a hidden function
  Tensor forward(Tensor x) {
    ++calls;
    return torch::relu(drop(fc->forward(x))) * scale;
  }
  torch::nn::Parameter& scale;
  torch::nn::Linear fc;
  torch::nn::Dropout drop;
  int calls = 0;
};
TORCH_MODULE(Block);

struct NetImpl : torch::nn::Module {
  NetImpl() { fc = register_module("fc", torch::nn::Linear(6, 2)); }
  torch::nn::Linear fc{nullptr};
  torch::nn::Sequential body = register_module("body", torch::nn::Sequential(Block(4, 8), Block(8, 6)));
  Tensor forward(const Tensor& x) const override { return fc(body(x)); }
};
TORCH_MODULE(Net);

struct TwoImpl : torch::nn::Module {
  torch::nn::Linear fc1, fc2;
  TwoImpl() : fc1(4, 8), fc2(8, 3) {
    register_module("fc1", fc1);
    register_module("fc2", fc2);
  }
  using torch::nn::Module::forward;
  Tensor forward(Tensor x) {
    x = torch::relu(fc1->forward(x));
    return fc2->forward(x);
  }
};
TORCH_MODULE(Two);

std::vector<std::string> names_of(const ls::nn::Module& module) {
  std::vector<std::string> names;
  for (const auto& [name, parameter] : module.named_parameters()) names.push_back(name);
  return names;
}

struct Numbers : torch::data::datasets::Dataset<Numbers> {
  torch::data::Example<> get(std::size_t index) override {
    const auto number = static_cast<double>(index);
    return {torch::full({1, 2, 2}, number), torch::full({}, number)};
  }
  torch::optional<std::size_t> size() const override { return 10; }
};

}  // namespace

TEST_CASE("a holder's module is Lockstep's: its children, names, parameters and modes") {
  Net net;
  CHECK(names_of(*net) == std::vector<std::string>{"body.0.scale", "body.0.fc.weight", "body.1.scale",
                                                   "body.1.fc.weight", "fc.weight", "fc.bias"});
  CHECK(net->fc->weight->sizes() == ls::Shape{2, 6});
  net->eval();
  CHECK(!net->body->is_training());
  const Net copy = net;  // shares the module
  CHECK(copy.get() == net.get());
  CHECK(net(torch::ones({3, 4})).sizes() == ls::Shape{3, 2});
  int layers = 0;
  net->apply([&](ls::nn::Module& module) {
    if (auto* fc = module.as<torch::nn::Linear>()) layers += fc->weight.size(0) > 0;
    CHECK(module.as<ls::nn::Embedding>() == nullptr);
  });
  CHECK(layers == 3);
  net->to(torch::kFloat64);
  CHECK(net->fc->weight->dtype() == torch::kFloat64);
  CHECK(net(torch::ones({3, 4}, torch::kFloat64)).dtype() == torch::kFloat64);
  static_assert(!std::is_convertible_v<torch::nn::Registered<torch::nn::Parameter>, Tensor>);
}

TEST_CASE("a forward that is not virtual runs in containers, with hooks and the path in errors") {
  Block block(4, 4);
  torch::nn::Sequential body(block, torch::nn::ReLU());
  int hooked = 0;
  block->register_forward_hook([&](const auto&, const auto&, const Tensor&) { return ++hooked, Tensor(); });
  body(torch::ones({2, 4}));
  body->forward(torch::ones({2, 4}));
  CHECK(block->calls == 2);
  CHECK(hooked == 2);
  const std::string error = error_of([&] { body(torch::ones({2, 5})); });
  CHECK_MESSAGE(contains(error, "linear"), error);
  CHECK_MESSAGE(error.starts_with("0"), error);
}

TEST_CASE("a child outlives its parent in a holder, and has one parent") {
  torch::nn::Linear shared(2, 2);
  {
    const torch::nn::Sequential first(shared);
    CHECK(contains(error_of([&] { torch::nn::Sequential second(shared); }),
                   "is already the child \"0\" of SequentialImpl"));
  }
  const torch::nn::Sequential second(shared);
  CHECK(shared->name() == "0");
  CHECK(second->parameters().size() == 2);
  CHECK(shared(torch::ones({1, 2})).sizes() == ls::Shape{1, 2});
  CHECK(contains(error_of([] { torch::nn::Linear(nullptr)->train(); }), "the holder is empty"));
  torch::nn::Sequential self;
  CHECK(contains(error_of([&] { self->push_back(self); }), "is the model itself"));
}

TEST_CASE("modules of holders train in Lockstep's modes, with the bits of Lockstep's modules") {
  struct Plain : ls::nn::Module {
    ls::nn::Linear& fc1 = add<ls::nn::Linear>("fc1", 4, 8);
    ls::nn::Linear& fc2 = add<ls::nn::Linear>("fc2", 8, 3);
    Tensor forward(const Tensor& x) const override { return fc2(ls::relu(fc1(x))); }
  };
  const Tensor x = torch::randn({8, 4}), target = torch::tensor({0, 1, 2, 0, 1, 2, 0, 1});
  const auto gradients_of = [&](ls::nn::Module& module) {
    ls::parallel::DataParallel parallel(module, {"cpu:0", "cpu:1"});
    parallel.backward(x, target, [&](const Tensor& part, const Tensor& labels) {
      return ls::nn::cross_entropy(module(part), labels);
    });
    return module.parameters();
  };
  ls::manual_seed(5);
  Plain plain;
  ls::manual_seed(5);
  Two held;
  CHECK(ls::nn::parameter_hash(plain) == ls::nn::parameter_hash(*held));
  const auto expected = gradients_of(plain), gradients = gradients_of(*held);
  REQUIRE(gradients.size() == expected.size());
  for (std::size_t i = 0; i < expected.size(); ++i) CHECK(same_bits(gradients[i]->grad(), expected[i]->grad()));
}

TEST_CASE("options by setters are Lockstep's options") {
  ls::manual_seed(1);
  torch::nn::Conv2d conv(torch::nn::Conv2dOptions(2, 4, {3, 3}).stride(2).padding(1).groups(2).bias(false));
  ls::manual_seed(1);
  const ls::nn::Conv2d same(2, 4, 3, {.stride = 2, .padding = 1, .groups = 2, .bias = false});
  const Tensor x = torch::randn({1, 2, 7, 7});
  CHECK(same_bits(conv(x), same(x)));
  CHECK(!conv->bias->defined());

  const Tensor images = torch::randn({1, 1, 4, 4}), rows = torch::randn({3, 5});
  namespace F = torch::nn::functional;
  CHECK(
      same_bits(torch::nn::MaxPool2d(torch::nn::MaxPool2dOptions(2).stride(1))(images), ls::max_pool2d(images, 2, 1)));
  CHECK(same_bits(F::max_pool2d(images, F::MaxPool2dFuncOptions(3)), ls::max_pool2d(images, 3)));
  CHECK(same_bits(torch::nn::LeakyReLU(torch::nn::LeakyReLUOptions().negative_slope(0.2))(rows),
                  ls::leaky_relu(rows, 0.2)));
  CHECK(same_bits(torch::nn::Softmax(1)(rows), F::softmax(rows, F::SoftmaxFuncOptions(1))));
  CHECK(torch::nn::LayerNorm(torch::nn::LayerNormOptions({5}).elementwise_affine(false))->parameters().empty());
  const auto options = torch::TensorOptions().dtype(torch::kFloat64).requires_grad(true);
  CHECK(torch::zeros({2}, options).dtype() == torch::kFloat64);
  CHECK(torch::zeros({2}, options).requires_grad());
  CHECK(torch::nn::AdaptiveAvgPool2d(torch::nn::AdaptiveAvgPool2dOptions({1, 2}))(images).sizes() ==
        ls::Shape{1, 1, 1, 2});

  const Tensor target = torch::tensor({0, 4, 2}), weight = torch::rand({5});
  const torch::nn::CrossEntropyLoss criterion(
      torch::nn::CrossEntropyLossOptions().weight(weight).label_smoothing(0.1).reduction(torch::kSum));
  const Tensor expected = ls::nn::cross_entropy(
      rows, target, {.reduction = ls::nn::Reduction::kSum, .label_smoothing = 0.1, .weight = weight});
  CHECK(same_bits(criterion->forward(rows, target), expected));
  CHECK(same_bits(torch::nll_loss(rows, target, {}, torch::Reduction::Sum),
                  ls::nll_loss(rows, target, {.reduction = ls::nn::Reduction::kSum})));
}

TEST_CASE("recurrent layers return tuples, with time first") {
  const Tensor x = torch::randn({5, 2, 3});
  torch::nn::LSTM lstm(torch::nn::LSTMOptions(3, 4).num_layers(2));
  const auto [y, state] = lstm->forward(x);
  const auto expected = lstm->forward_state(x);
  CHECK(same_bits(y, expected.y));
  CHECK(same_bits(std::get<1>(state), expected.state.c));
  const auto [again, last] = lstm(x, state);
  CHECK(same_bits(again, lstm->forward_state(x, expected.state).y));
  torch::nn::GRU gru(3, 4);
  CHECK(std::get<0>(gru(x)).sizes() == ls::Shape{5, 2, 4});
  CHECK(std::get<1>(gru(x, torch::zeros({1, 2, 4}))).sizes() == ls::Shape{1, 2, 4});
}

TEST_CASE("optimizers take LibTorch's options, and step as Lockstep's") {
  const auto train = [](auto make) {
    ls::manual_seed(3);
    torch::nn::Linear fc(3, 1);
    const auto optimizer = make(fc->parameters());
    for (int step = 0; step < 3; ++step) {
      optimizer->zero_grad();
      fc(torch::ones({2, 3})).sum().backward();
      optimizer->step();
    }
    return fc->weight->detach();
  };
  using Parameters = std::vector<ls::nn::Parameter>;
  const auto adam = train([](const Parameters& p) {
    return std::make_unique<torch::optim::Adam>(
        p, torch::optim::AdamOptions(0.1).betas(std::make_tuple(0.5, 0.8)).weight_decay(0.01));
  });
  CHECK(same_bits(adam, train([](const Parameters& p) {
                    return std::make_unique<ls::optim::Adam>(
                        p, ls::optim::AdamOptions{.lr = 0.1, .beta1 = 0.5, .beta2 = 0.8, .weight_decay = 0.01});
                  })));
  const auto sgd = train([](const Parameters& p) {
    return std::make_unique<torch::optim::SGD>(p, torch::optim::SGDOptions(0.1).momentum(0.9).nesterov(true));
  });
  CHECK(same_bits(sgd, train([](const Parameters& p) {
                    return std::make_unique<ls::optim::SGD>(
                        p, ls::optim::SGDOptions{.lr = 0.1, .momentum = 0.9, .nesterov = true});
                  })));
  torch::nn::Linear fc(1, 1);
  torch::optim::SGD optimizer(fc->parameters(), 0.5);
  torch::optim::StepLR scheduler(optimizer, 1, 0.5);
  scheduler.step();
  CHECK(optimizer.lr() == 0.25);
}

TEST_CASE("loaders give examples with data and target, of data sets of the program") {
  auto loader = torch::data::make_data_loader<torch::data::samplers::SequentialSampler>(
      Numbers().map(torch::data::transforms::Normalize<>(1.0, 2.0)).map(torch::data::transforms::Stack<>()),
      torch::data::DataLoaderOptions().batch_size(4).workers(2));
  std::vector<double> targets, sums;
  for (auto& batch : *loader) {
    CHECK(batch.data.dim() == 4);
    for (const double target : batch.target.to_vector<double>()) targets.push_back(target);
    sums.push_back(batch.data.sum().item<double>());
  }
  CHECK(targets == std::vector<double>{0, 1, 2, 3, 4, 5, 6, 7, 8, 9});
  CHECK(sums == std::vector<double>{4, 36, 30});

  struct Negated : torch::data::transforms::TensorTransform<> {
    Tensor operator()(Tensor input) override { return -input; }
  };
  auto mapped = Numbers()
                    .map(Negated())
                    .map(torch::data::transforms::TensorLambda<>([](Tensor x) { return x + 1; }))
                    .map(torch::data::transforms::Lambda<torch::data::Example<>>([](torch::data::Example<> e) {
                      return torch::data::Example<>{e.data, e.target * 2};
                    }));
  CHECK(mapped.get(3).data.sum().item<double>() == -8);
  CHECK(mapped.get(3).target.item<double>() == 6);

  std::multiset<double> drawn;
  auto shuffled = torch::data::make_data_loader(Numbers().map(torch::data::transforms::Stack<>()), 3);
  for (auto& [data, target] : *shuffled) {
    CHECK(data.size(0) == target.size(0));
    for (const double each : target.to_vector<double>()) drawn.insert(each);
  }
  CHECK(drawn == std::multiset<double>{0, 1, 2, 3, 4, 5, 6, 7, 8, 9});
}

TEST_CASE("save and load take holders; checks throw") {
  const std::string path = "libtorch_holder.safetensors";
  Net saved, loaded;
  torch::save(saved, path);
  torch::load(loaded, path);
  CHECK(same_bits(saved->fc->weight, loaded->fc->weight));
  std::filesystem::remove(path);
  CHECK(error_of([] { TORCH_CHECK(1 > 2, "one is ", 1); }) == "expected 1 > 2: one is 1");
  CHECK(torch::str("sample-", 3, ".pt") == "sample-3.pt");
}
