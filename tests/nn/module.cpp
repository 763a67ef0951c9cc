#include "support.h"

#include <memory>
#include <set>
#include <stdexcept>

namespace {

struct Net : nn::Module {
  nn::Linear& fc1 = add<nn::Linear>("fc1", 3, 4);
  nn::Linear& fc2 = add<nn::Linear>("fc2", 4, 2);
  nn::Buffer& calls = add_buffer("calls", ls::zeros({1}));
  ls::Tensor forward(const ls::Tensor& x) const override { return fc2(ls::relu(fc1(x))); }
};

struct Outer : nn::Module {
  Net& net = add<Net>("net");
  nn::Parameter& scale = add_parameter("scale", ls::ones({2}));
  ls::Tensor forward(const ls::Tensor& x) const override { return net(x) * scale; }
};

struct TiedPair : nn::Module {
  nn::Embedding& embedding = add<nn::Embedding>("embedding", 5, 3);
  nn::Parameter& head = add_parameter("head", embedding.weight);
  ls::Tensor forward(const ls::Tensor& x) const override { return ls::linear(embedding(x), head); }
};

std::vector<std::string> names(const nn::Module& module) {
  std::vector<std::string> list;
  for (const auto& [name, parameter] : module.named_parameters()) list.push_back(name);
  return list;
}

}  // namespace

TEST_CASE("parameters and buffers are listed in order under PyTorch's names") {
  Outer model;
  CHECK(names(model) ==
        std::vector<std::string>{"scale", "net.fc1.weight", "net.fc1.bias", "net.fc2.weight", "net.fc2.bias"});
  CHECK(model.parameters().size() == 5);
  REQUIRE(model.named_buffers().size() == 1);
  CHECK(model.named_buffers()[0].first == "net.calls");
  CHECK(model.children() == std::vector<nn::Module*>{&model.net});
  for (const nn::Parameter& p : model.parameters()) CHECK((p->requires_grad() && p->is_leaf()));
  CHECK_FALSE(model.net.calls->requires_grad());
}

TEST_CASE("a name that is empty, dotted or taken is refused, whatever it names") {
  struct Empty : nn::Module {
  } model;
  model.add<nn::Linear>("fc", 1, 1);
  model.add_parameter("w", ls::ones({1}));
  model.add_buffer("b", ls::ones({1}));
  CHECK(error_of([&] { model.add<nn::ReLU>(""); }) == "Empty: the name of a child, parameter or buffer is empty");
  CHECK(error_of([&] { model.add<nn::ReLU>("a.b"); }) ==
        "Empty: the name \"a.b\" contains '.', which separates modules in paths");
  CHECK(error_of([&] { model.add_parameter("fc", ls::ones({1})); }) == "Empty: there is a child named \"fc\" already");
  CHECK(error_of([&] { model.add_buffer("w", ls::ones({1})); }) == "Empty: there is a parameter named \"w\" already");
  CHECK(error_of([&] { model.add<nn::ReLU>("b"); }) == "Empty: there is a buffer named \"b\" already");
  CHECK(error_of([&] { model.add_child("c", nullptr); }) == "Empty: the child \"c\" is null");
}

TEST_CASE("a refused name draws no random numbers") {
  ls::manual_seed(3);
  nn::Module a;
  a.add<nn::Linear>("fc", 2, 2);
  CHECK_THROWS_AS(a.add<nn::Linear>("fc", 2, 2), ls::InvalidArgument);
  const ls::Tensor after = nn::Linear(2, 2).weight;
  ls::manual_seed(3);
  nn::Module b;
  b.add<nn::Linear>("fc", 2, 2);
  CHECK(ls::equal(after, nn::Linear(2, 2).weight));
}

TEST_CASE("an error inside a forward has the path of modules and keeps its type") {
  Outer model;
  const std::string text = error_of([&] { model(ls::ones({2, 5})); });
  CHECK_MESSAGE(text.starts_with("net.fc1: linear: "), text);
  CHECK_MESSAGE((contains(text, "(2, 5) f32 cpu") && contains(text, "(4, 3) f32 cpu")), text);

  struct Failing : nn::Module {
    ls::Tensor forward(const ls::Tensor&) const override { throw ls::IoError("no data"); }
  };
  nn::Sequential body(nn::Identity(), nn::Sequential{Failing()});
  CHECK(error_of<ls::IoError>([&] { body(ls::ones({1})); }) == "1.0: no data");
  struct Foreign : nn::Module {
    ls::Tensor forward(const ls::Tensor&) const override { throw std::out_of_range("theirs"); }
  };
  CHECK_THROWS_AS(nn::Sequential{Foreign()}(ls::ones({1})), std::out_of_range);
}

TEST_CASE("calling a module without forward is an error that says so") {
  struct Plain : nn::Module {};
  CHECK(contains(error_of([] { Plain()(ls::ones({1})); }), "Plain: forward(const Tensor&) const is not overridden"));
}

TEST_CASE("several inputs are passed to forward_inputs, a single one by default to forward") {
  struct Add : nn::Module {
    ls::Tensor forward_inputs(const std::vector<ls::Tensor>& inputs) const override { return inputs[0] + inputs[1]; }
  };
  const ls::Tensor one = ls::ones({2});
  CHECK(ls::equal(Add()({one, one}), ls::full({2}, 2.0)));
  Outer model;
  const ls::Tensor x = ls::ones({1, 3});
  CHECK(same_bits(model(std::vector<ls::Tensor>{x}), model(x)));
  const std::string text = error_of([&] { model({x, x}); });
  CHECK_MESSAGE(contains(text, "2 inputs, but forward takes one; override forward_inputs"), text);
  struct Parent : nn::Module {
    Add& part = add<Add>("part");
    ls::Tensor forward(const ls::Tensor& x) const override { return part({x, ls::ones({3})}); }
  };
  CHECK(error_of([&] { Parent()(one); }).starts_with("part: "));
}

TEST_CASE("references to children, parameters and buffers stay valid when a module moves") {
  auto first = std::make_unique<Outer>();
  const ls::Tensor x = ls::ones({1, 3}), y = (*first)(x);
  nn::Parameter& scale = first->scale;
  Outer second = std::move(*first);
  first.reset();
  CHECK(ls::equal(second(x), y));
  CHECK(&second.scale == &scale);
  CHECK(names(second).size() == 5);
  Outer third;
  CHECK(third.parameters()[0] == third.scale);
}

TEST_CASE("add_parameter does not change the given tensor, but shares its elements") {
  const ls::Tensor t = ls::ones({2});
  nn::Module module;
  nn::Parameter& p = module.add_parameter("p", t);
  CHECK_FALSE(t.requires_grad());
  CHECK(p->data<float>() == t.data<float>());
  CHECK_THROWS_AS(module.add_parameter("i", ls::ones({2}, {.dtype = ls::kInt64})), ls::InvalidArgument);
}

TEST_CASE("a tied parameter is listed once, saved under both names, and gets one gradient") {
  TiedPair model;
  CHECK(model.parameters().size() == 1);
  CHECK(names(model) == std::vector<std::string>{"head"});  // a module's own parameters come first
  const ls::StateDict dict = model.state_dict();
  CHECK((dict.contains("head") && dict.contains("embedding.weight")));
  ls::sum(model(ls::tensor({0, 1}))).backward();
  CHECK(model.head->grad().defined());
  CHECK(model.embedding.weight->grad().shape() == ls::Shape{5, 3});

  TiedPair other;
  other.load_state_dict(dict);
  CHECK(ls::equal(other.head, model.head));
  CHECK(other.head == other.embedding.weight);
}

TEST_CASE("train and eval set the mode of every module") {
  nn::Sequential model(nn::Dropout(0.5), nn::Sequential(nn::Dropout(0.5)));
  CHECK(model[1].is_training());
  model.eval();
  CHECK_FALSE(model.is_training());
  CHECK_FALSE(model[1].children()[0]->is_training());
  const ls::Tensor x = ls::ones({100});
  CHECK(ls::equal(model(x), x));
  model.train();
  CHECK_FALSE(ls::equal(model(x), x));
}

TEST_CASE("zero_grad makes gradients undefined") {
  Net model;
  ls::sum(model(ls::ones({1, 3}))).backward();
  CHECK(model.fc1.weight->grad().defined());
  model.zero_grad();
  for (const nn::Parameter& p : model.parameters()) CHECK_FALSE(p->grad().defined());
}

TEST_CASE("to() replaces tensors inside the handles: optimizers still work, parameters stay leaves, gradients follow") {
  Net model;
  ls::optim::SGD optimizer(model.parameters(), {.lr = 0.5});
  model.fc1.bias->requires_grad_(false);
  ls::sum(model(ls::ones({1, 3}))).backward();
  model.to(ls::kFloat64);
  model.to("cpu:1");
  for (const auto& entry : model.named_parameters()) {
    const auto& name = entry.first;
    const auto& p = entry.second;
    INFO(name);
    CHECK(p->dtype() == ls::kFloat64);
    CHECK(p->device() == ls::Device("cpu:1"));
    CHECK(p->is_leaf());
    CHECK(p->requires_grad() == (name != "fc1.bias"));
  }
  CHECK(model.calls->dtype() == ls::kFloat64);
  CHECK(model.fc2.weight->grad().device() == ls::Device("cpu:1"));
  const ls::Tensor before = model.fc2.weight->clone();
  optimizer.step();
  CHECK_FALSE(ls::equal(before, model.fc2.weight));
  CHECK_THROWS_AS(model.to(ls::kInt64), ls::InvalidArgument);
}

TEST_CASE("to() keeps the hooks of parameters") {
  nn::Linear layer(2, 1);
  int runs = 0;
  layer.weight->register_hook([&](const ls::Tensor&) { return ++runs, ls::Tensor(); });
  ls::sum(layer(ls::ones({1, 2}))).backward();
  layer.to(ls::kFloat64);
  ls::sum(layer(ls::ones({1, 2}, {.dtype = ls::kFloat64}))).backward();
  CHECK(runs == 2);
}

TEST_CASE("to() keeps the dtype of integer buffers") {
  nn::Module module;
  nn::Buffer& steps = module.add_buffer("steps", ls::zeros({}, {.dtype = ls::kInt64}));
  module.to(ls::kFloat64);
  CHECK(steps->dtype() == ls::kInt64);
}

TEST_CASE("inside a replica view a parameter is the replica's tensor, and elsewhere the master") {
  nn::Linear layer(2, 1, {.bias = false});
  const ls::Tensor replica = ls::full({1, 2}, 7.0);
  nn::ReplicaView view;
  view.set(layer.weight.id(), replica);
  {
    const nn::ReplicaViewGuard guard(&view);
    CHECK(nn::current_replica_view() == &view);
    CHECK(layer(ls::ones({1, 2})).item<double>() == 14.0);
    CHECK_FALSE(ls::equal(layer.weight.master(), replica));
    CHECK_FALSE(ls::equal(layer.state_dict().at("weight"), replica));
    CHECK_FALSE(ls::equal(layer.parameters()[0].master(), replica));
    const nn::ReplicaViewGuard none(nullptr);
    CHECK_FALSE(ls::equal(layer.weight, replica));
  }
  CHECK(nn::current_replica_view() == nullptr);
  CHECK_FALSE(ls::equal(layer.weight, replica));
}

TEST_CASE("a parameter that is absent is not listed, saved or moved") {
  nn::Linear layer(2, 3, {.bias = false});
  CHECK_FALSE(layer.bias.master().defined());
  CHECK(layer.parameters().size() == 1);
  CHECK(layer.state_dict().size() == 1);
  layer.to(ls::kFloat64);
  CHECK(layer(ls::ones({1, 2}, {.dtype = ls::kFloat64})).shape() == ls::Shape{1, 3});
}

TEST_CASE("add moves a module in and returns a reference to it, with its parameters as they are") {
  struct Net : nn::Module {
    nn::Conv2d& conv = add("conv", nn::Conv2d(1, 2, 3, {.padding = 1}));
    nn::Sequential& body = add<nn::Sequential>("body", nn::Sequential(nn::ReLU(), nn::Flatten()));
    ls::Tensor forward(const ls::Tensor& x) const override { return body(conv(x)); }
  } net;
  CHECK(net.conv.name() == "conv");
  CHECK(net.named_parameters()[0].first == "conv.weight");
  CHECK(net.named_parameters()[0].second == net.conv.weight);
  CHECK(net.body.size() == 2);
  CHECK(net(ls::ones({1, 1, 4, 4})).shape() == ls::Shape{1, 32});
  CHECK(contains(error_of([&] { net.add("conv", nn::ReLU()); }), "there is a child named \"conv\" already"));
}

TEST_CASE("a module with parameters that its parent has not registered warns when it runs, once") {
  struct Forgetful : nn::Module {
    nn::Linear fc{2, 2};  // not registered
    nn::ReLU activation;  // has nothing to register
    nn::Linear& known = add<nn::Linear>("known", 2, 2);
    ls::Tensor forward(const ls::Tensor& x) const override { return known(activation(fc(x))); }
  };
  struct Drops : nn::Module {
    nn::Dropout dropout;
    ls::Tensor forward(const ls::Tensor& x) const override { return dropout(x); }
  };
  const ls::Tensor x = ls::ones({1, 2});
  const Forgetful net;
  CHECK(warnings_of([&] {
          net(x);
          net(x);
        }) == std::vector<std::string>{
                  "Linear: runs in the forward of Forgetful, but no add() has registered it: parameters(), "
                  "state_dict(), train() and to() of Forgetful leave it out\n"
                  "Register it: Linear& x = add<Linear>(\"x\", ...), or add(\"x\", Linear(...))"});
  CHECK(warnings_of([&] { Drops()(x); }).size() == 1);
  CHECK(warnings_of([&] {  // inside a registered child, too
          nn::Sequential body(nn::Linear(2, 2), Forgetful());
          body(x);
        })
            .size() == 1);
  CHECK(warnings_of([&] {
          nn::Sequential body(nn::Linear(2, 2), nn::Dropout(0.5), nn::Sequential(nn::Linear(2, 2)));
          body(x);
          net.known(x);  // by itself, without the parent's forward
          nn::Linear(2, 2)(net.known(x));
        }).empty());
}
