// Submodules that are replaced, parameters that are frozen by pattern, copies, paths of modules, LibTorch's names.
#include <memory>

#include "replace.h"

namespace {

struct Net : nn::Module {
  nn::Linear& fc = add<nn::Linear>("fc", 3, 4);
  nn::Sequential& body = add("body", nn::Sequential(nn::Linear(4, 4), nn::ReLU(), nn::Dropout(0.5)));
  nn::Linear& head = add<nn::Linear>("head", 4, 2);
  nn::Buffer& calls = add_buffer("calls", ls::zeros({1}));
  ls::Tensor forward(const ls::Tensor& x) const override { return head(body(ls::tanh(fc(x)))); }
};

template <class Named>
std::vector<std::string> names(const Named& named) {
  std::vector<std::string> list;
  for (const auto& entry : named) list.push_back(entry.first);
  return list;
}
using Names = std::vector<std::string>;

const ls::Tensor kX = numbers({5, 3});

}  // namespace

TEST_CASE("named_modules has PyTorch's paths, parents first") {
  Net net;
  CHECK(names(net.named_modules()) == Names{"", "fc", "body", "body.0", "body.1", "body.2", "head"});
  CHECK(net.named_modules()[0].second == &net);
  CHECK(net.named_modules()[3].second == &net.body[0]);
}

TEST_CASE("LibTorch's names register modules, parameters and buffers") {
  struct Ported : nn::Module {
    nn::Linear& fc = register_module("fc", nn::Linear(3, 2));
    nn::Parameter& scale = register_parameter("scale", ls::ones({2}));
    nn::Parameter& fixed = register_parameter("fixed", ls::ones({2}), /*requires_grad=*/false);
    nn::Buffer& count = register_buffer("count", ls::zeros({1}));
    ls::Tensor forward(const ls::Tensor& x) const override { return fc(x) * scale * fixed; }
  } model;
  CHECK(names(model.named_parameters()) == Names{"scale", "fixed", "fc.weight", "fc.bias"});
  CHECK(names(model.named_buffers()) == Names{"count"});
  CHECK((model.scale->requires_grad() && !model.fixed->requires_grad()));
}

TEST_CASE("the members of a model run the module that replaced theirs, in every call and list") {
  Net net;
  nn::Linear& inner = dynamic_cast<nn::Linear&>(net.body[0]);
  const ls::Tensor weight = net.fc.weight->clone();
  Lora& lora = net.replace("fc", Lora(std::move(net.fc)));
  nn::Linear& first = net.replace("body.0", nn::Linear(4, 4));
  net.eval();
  CHECK(same_bits(net(kX), net.head(ls::relu(first(ls::tanh(lora(kX)))))));
  CHECK(same_bits(net.fc(kX), lora(kX)));
  CHECK(same_bits(net.fc(std::vector<ls::Tensor>{kX}), lora(kX)));
  CHECK(same_bits(inner(ls::ones({1, 4})), first(ls::ones({1, 4}))));
  CHECK(names(net.named_parameters()) == Names{"fc.down", "fc.up", "fc.base.weight", "fc.base.bias", "body.0.weight",
                                               "body.0.bias", "head.weight", "head.bias"});
  CHECK(net.state_dict().contains("fc.base.weight"));
  CHECK(net.children()[0] == &lora);
  CHECK(net.fc.parameters() == lora.parameters());
  CHECK(net.fc.children() == lora.children());
  CHECK(net.fc.type_name() == "Lora");
  CHECK((!lora.is_training() && !lora.base.is_training() && !first.is_training()));
  net.fc.train();
  CHECK((lora.is_training() && lora.base.is_training() && net.fc.is_training() && !first.is_training()));
  CHECK(same_bits(net.fc.weight, weight));  // it moved into lora.base
  CHECK((inner.weight == first.weight && inner.bias == first.bias));
  net.to(ls::kFloat64);
  CHECK((lora.up->dtype() == ls::kFloat64 && net.fc.weight->dtype() == ls::kFloat64));
  CHECK(contains(net.summary({1, 3}, {.dtype = ls::kFloat64}), "fc.base"));
}

TEST_CASE("hooks and additions through the old reference reach the new module, and each module may be replaced again") {
  Net net;
  net.replace("head", nn::Sequential(nn::Linear(4, 4), nn::Linear(4, 2)));
  int runs = 0;
  net.head.register_forward_hook([&](const nn::Module& module, const std::vector<ls::Tensor>&, const ls::Tensor&) {
    ++runs;
    CHECK(module.type_name() == "Sequential");
    return ls::Tensor();
  });
  net(kX);
  CHECK(runs == 1);
  CHECK_FALSE(net.head.weight->defined());  // a Sequential has no weight
  net.head.add<nn::Linear>("2", 2, 5);
  CHECK(net(kX).shape() == ls::Shape{5, 5});
  net.head.add_parameter("scale", ls::ones({1}));
  CHECK(net.state_dict().contains("head.scale"));
  nn::Linear& last = net.replace("head", nn::Linear(4, 7));
  CHECK(net(kX).shape() == ls::Shape{5, 7});
  CHECK(net.head.weight == last.weight);
  nn::Linear& latest = net.replace("head", nn::Linear(4, 9, {.bias = false}));
  CHECK(net(kX).shape() == ls::Shape{5, 9});
  CHECK((net.head.weight == latest.weight && last.weight == latest.weight));
  CHECK_FALSE(net.head.bias->defined());
  CHECK(runs == 2);
}

TEST_CASE("a whole part of a model is replaced, and references to its parts follow by name") {
  struct Outer : nn::Module {
    Net& net = add<Net>("net");
    nn::Linear& extra = add<nn::Linear>("extra", 3, 2);
    ls::Tensor forward(const ls::Tensor& x) const override { return net(x) + extra(x) + net.fc(x).sum(); }
  };
  struct Small : nn::Module {
    nn::Linear& fc = add<nn::Linear>("fc", 3, 2);
    ls::Tensor forward(const ls::Tensor& x) const override { return fc(x); }
  };
  Outer model;
  nn::Linear& head = model.net.head;
  Small& small = model.replace("net", Small());
  CHECK(same_bits(model(kX), small(kX) + model.extra(kX) + small.fc(kX).sum()));
  CHECK(model.net.fc.weight == small.fc.weight);
  CHECK(head.parameters().empty());  // Small has no head
  CHECK_THROWS_AS(head(ls::ones({1, 4})), ls::InvalidArgument);
  Outer moved = std::move(model);
  CHECK(same_bits(moved(kX), small(kX) + moved.extra(kX) + small.fc(kX).sum()));
}

TEST_CASE("optimizers and gradients of a model after replace are those of its new modules") {
  Net net;
  net.eval();
  net.replace("fc", Lora(std::move(net.fc)));
  CHECK(net.freeze("*") == 8);
  CHECK(net.unfreeze("fc.down") + net.unfreeze("fc.up") == 2);
  ls::optim::AdamW optimizer(net.parameters(), {.lr = 0.1, .weight_decay = 0.5});
  const ls::StateDict before = net.state_dict().clone();
  for (int step = 0; step < 2; ++step) {
    optimizer.zero_grad();
    ls::sum(net(kX)).backward();
    optimizer.step();
  }
  for (const auto& entry : net.state_dict()) {
    INFO(entry.first);
    CHECK(same_bits(entry.second, before.at(entry.first)) == !(entry.first == "fc.down" || entry.first == "fc.up"));
  }
}

TEST_CASE("composed layers run what replaced their parts, with and without masks") {
  nn::TransformerEncoder encoder(2, 8, 2, {.dim_feedforward = 16, .dropout = 0});
  const ls::Tensor x = numbers({2, 3, 8});
  auto& layer = dynamic_cast<nn::TransformerEncoderLayer&>(encoder.layers[0]);
  auto& attention = encoder.replace("layers.0.self_attn", nn::MultiheadAttention(8, 4));
  for (const bool causal : {false, true}) {
    ls::Tensor want = layer.norm1(x + attention.forward(x, x, x, {.is_causal = causal}));
    want = layer.norm2(want + layer.linear2(ls::relu(layer.linear1(want))));
    CHECK(same_bits(layer.forward(x, {.is_causal = causal}), want));
  }
  CHECK(contains(error_of([&] { layer.self_attn.forward(x, x, x); }), "only calls as module(x) are forwarded"));
  encoder.replace("layers.1", nn::Identity());
  CHECK(same_bits(encoder(x), layer(x)));
  const std::string text = error_of([&] { encoder.forward(x, {.is_causal = true}); });
  CHECK_MESSAGE(contains(text, "replace() has put a Identity in its place"), text);
}

TEST_CASE("replace refuses paths without a module, modules of others, and recursion") {
  Net net;
  CHECK(error_of([&] { net.replace("haed", nn::Linear(4, 3)); }) ==
        "replace: Net has no module \"haed\"; the nearest are \"head\", \"fc\", \"body\"");
  CHECK(contains(error_of([&] { net.replace("body.7", nn::ReLU()); }),
                 "no module \"body.7\"; the nearest are \"body.0\""));
  CHECK(contains(error_of([&] { net.replace("fc.weight", nn::ReLU()); }), "has no module \"fc.weight\""));
  CHECK(contains(error_of([&] { net.replace("", nn::ReLU()); }), "the path is empty"));
  CHECK(contains(error_of([&] { net.replace("fc", nullptr); }), "the new module for \"fc\" is null"));
  const ls::Tensor weight = net.head.weight->clone();
  CHECK(contains(error_of([&] { net.replace("fc", std::move(net.head)); }), "is the child \"head\" of Net"));
  CHECK(same_bits(net.head.weight, weight));  // was not moved
  struct Recursive : nn::Module {
    const nn::Linear& old;
    explicit Recursive(const nn::Linear& old) : old(old) {}
    ls::Tensor forward(const ls::Tensor& x) const override { return old(x) * 2; }
  };
  net.replace("fc", Recursive(net.fc));
  CHECK(contains(error_of([&] { net(kX); }), "Move the old module into the new one"));
  CHECK(contains(error_of([&] { Lora(std::move(net.fc)); }), "move what replace() returned"));
}

TEST_CASE("a model that a training mode holds refuses new children, parameters and buffers, and gets them afterwards") {
  struct Outer : nn::Module {
    Net& net = add<Net>("net");
  } model;
  {
    const ls::parallel::GradientAccumulation run(model.net);
    const std::string rest =
        " would be added to a model that a training mode holds, which would neither train nor share it\n"
        "Add it before, and construct the mode afterwards";
    CHECK(error_of([&] { model.net.add<nn::Linear>("extra", 2, 2); }) == "Net: \"extra\"" + rest);
    CHECK(error_of([&] { model.net.body.push_back(nn::Linear(2, 2)); }) == "Sequential: \"3\"" + rest);
    CHECK(error_of([&] { model.net.fc.add_parameter("scale", ls::ones({1})); }) == "Linear: \"scale\"" + rest);
    CHECK(error_of([&] { model.net.add_buffer("mean", ls::ones({1})); }) == "Net: \"mean\"" + rest);
    nn::Linear& above = model.add<nn::Linear>("above", 2, 2);  // of another module than the mode's
    const ls::parallel::DataParallel replicas(above, {"cpu:0", "cpu:1"});
    CHECK(contains(error_of([&] { above.add_parameter("scale", ls::ones({1})); }), "a training mode holds"));
  }
  model.net.add<nn::Linear>("extra", 2, 2);
  CHECK(model.net.parameters().size() == 8);
}

TEST_CASE("replace is refused while a training mode or a parallel call holds the model, and works afterwards") {
  struct Outer : nn::Module {
    Net& net = add<Net>("net");
    ls::Tensor forward(const ls::Tensor& x) const override { return net(x); }
  } model;
  const auto text = [&] { return error_of([&] { model.replace("net.fc", nn::Linear(3, 4)); }); };
  {
    const ls::parallel::GradientAccumulation of_root(model);
    CHECK(contains(text(), "a training mode or a parallel call holds"));
  }
  {
    const ls::parallel::DataParallel of_part(model.net, {"cpu:0", "cpu:1"});
    CHECK(contains(text(), "a training mode or a parallel call holds"));
  }
  {
    const ls::parallel::GradientAccumulation of_old(model.net.fc);
    CHECK(contains(text(), "a training mode or a parallel call holds"));
  }
  {
    const ls::parallel::GradientAccumulation of_other(model.net.head);
    CHECK(text() == "");
  }
  CHECK(text() == "");
}

TEST_CASE("freeze and unfreeze by pattern: what is described, the count, gradients, errors") {
  Net net;
  ls::sum(net(kX)).backward();
  CHECK(net.freeze("body") == 2);
  CHECK(net.freeze("*.bias") == 2);  // of fc and head: '*' is one component
  CHECK((!net.fc.bias->requires_grad() && net.fc.weight->requires_grad()));
  CHECK((!net.fc.bias->grad().defined() && net.fc.weight->grad().defined()));
  CHECK(net.unfreeze("fc.*") == 2);
  CHECK((net.fc.bias->requires_grad() && !net.head.bias->requires_grad()));
  CHECK(net.head.unfreeze("bias") == 1);
  CHECK(net.freeze("*") == 6);
  CHECK(error_of([&] { net.freeze("haed.*"); }) ==
        "freeze: the pattern \"haed.*\" describes no parameter of Net; the nearest are \"head\", \"fc\", \"body\"");
  CHECK(contains(error_of([&] { net.unfreeze("fc.wieght"); }), "unfreeze: the pattern \"fc.wieght\""));
  CHECK(contains(error_of([&] { net.unfreeze("fc.wieght"); }), "\"fc.weight\""));
  struct Tied : nn::Module {
    nn::Embedding& embedding = add<nn::Embedding>("embedding", 5, 3);
    nn::Parameter& head = add_parameter("head", embedding.weight);
  } tied;
  CHECK(tied.freeze("embedding") == 1);  // listed as "head"
  CHECK(tied.parameters()[0]->requires_grad() == false);
  CHECK(tied.unfreeze("*") == 1);
}

TEST_CASE("clone is a deep copy by a function, and draws no random numbers") {
  Net net;
  net.fc.to(ls::kFloat64);
  net.body.eval();
  net.freeze("head");
  ls::sum(net.fc(kX.to(ls::kFloat64))).backward();
  ls::manual_seed(3);
  const Net copy = nn::clone(net, [] { return Net(); });
  const auto pointer = nn::clone(net, [] { return std::make_unique<Net>(); });
  const ls::Tensor after = ls::rand({3});
  ls::manual_seed(3);
  CHECK(same_bits(after, ls::rand({3})));
  CHECK(nn::parameter_hash(copy) == nn::parameter_hash(net));
  CHECK(nn::parameter_hash(*pointer) == nn::parameter_hash(net));
  CHECK((copy.fc.weight->dtype() == ls::kFloat64 && copy.head.weight->dtype() == ls::kFloat32));
  CHECK((copy.is_training() && !copy.body[2].is_training()));
  CHECK((copy.fc.weight->requires_grad() && !copy.head.weight->requires_grad()));
  CHECK_FALSE(copy.fc.weight->grad().defined());
  const ls::NoGradGuard no_grad;
  net.fc.weight->zero_();
  net.calls->fill_(7.0);
  CHECK(nn::parameter_hash(copy) == nn::parameter_hash(*pointer));
  CHECK(copy.calls->item<double>() == 0);
}

TEST_CASE("clone names the first difference between module and copy") {
  Net net;
  net.replace("fc", Lora(std::move(net.fc)));
  const std::string text = error_of([&] { nn::clone(net, [] { return Net(); }); });
  CHECK_MESSAGE(contains(text, "clone: module 1 of the module is \"fc\" Lora, that of the copy \"fc\" Linear"), text);
  const Net copy = nn::clone(net, [] {
    Net made;
    made.replace("fc", Lora(std::move(made.fc)));
    return made;
  });
  CHECK(nn::parameter_hash(copy) == nn::parameter_hash(net));
  nn::Sequential wide(nn::Linear(3, 4));
  CHECK(contains(error_of([&] { nn::clone(wide, [] { return nn::Sequential(nn::Linear(3, 5)); }); }),
                 "parameter 0 of the module is \"0.weight\" (4, 3), that of the copy \"0.weight\" (5, 3)"));
}
