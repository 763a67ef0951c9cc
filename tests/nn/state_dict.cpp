#include "support.h"

namespace {

struct Model : nn::Module {
  nn::Linear& fc = add<nn::Linear>("fc", 2, 3);
  nn::Buffer& steps = add_buffer("steps", ls::zeros({}, {.dtype = ls::kInt64}));
  ls::Tensor forward(const ls::Tensor& x) const override { return fc(x); }
};

ls::StateDict without(const ls::StateDict& dict, const std::string& name) {
  ls::StateDict rest;
  for (const auto& [key, tensor] : dict) {
    if (key != name) rest.insert(key, tensor);
  }
  return rest;
}

}  // namespace

TEST_CASE("a state dict is ordered, detached, and shares storage with the module") {
  Model model;
  const ls::StateDict dict = model.state_dict();
  std::vector<std::string> names;
  for (const auto& [name, tensor] : dict) {
    names.push_back(name);
    CHECK_FALSE(tensor.requires_grad());
  }
  CHECK(names == std::vector<std::string>{"steps", "fc.weight", "fc.bias"});
  dict.at("fc.bias").fill_(3.0);
  CHECK(model.fc.bias->to_vector<float>() == std::vector<float>{3, 3, 3});
}

TEST_CASE("the error for a missing name suggests the nearest one") {
  const ls::StateDict dict = {{"fc.weight", ls::ones({1})}, {"fc.bias", ls::ones({1})}};
  CHECK(error_of([&] { dict.at("fc.wieght"); }) ==
        "StateDict: no entry \"fc.wieght\" among 2; the nearest is \"fc.weight\"");
  CHECK(error_of([&] { dict.at("xyz"); }) == "StateDict: no entry \"xyz\" among 2");
  ls::StateDict copy = dict;
  CHECK(error_of([&] { copy.insert("fc.bias", ls::ones({1})); }) == "StateDict: an entry \"fc.bias\" exists already");
}

TEST_CASE("loading copies into the module's own tensors, converting dtypes, and optimizers keep working with them") {
  Model model, other;
  const float* address = other.fc.weight->data<float>();
  model.to(ls::kFloat64);
  model.steps->fill_(5);
  const nn::LoadStateDictResult result = other.load_state_dict(model.state_dict());
  CHECK((result.missing.empty() && result.unexpected.empty()));
  CHECK(other.fc.weight->data<float>() == address);
  CHECK(other.fc.weight->requires_grad());
  CHECK(ls::equal(other.fc.weight.master().detach(), model.fc.weight->detach().to(ls::kFloat32)));
  CHECK(other.steps->item<int>() == 5);
}

TEST_CASE("a strict load names missing and unexpected keys and changes nothing") {
  Model model, other;
  const std::uint64_t before = nn::parameter_hash(model);
  ls::StateDict dict = without(other.state_dict(), "fc.bias");
  dict.insert("head.weight", ls::ones({1}));
  CHECK(error_of([&] { model.load_state_dict(dict); }) ==
        "load_state_dict: 1 missing: \"fc.bias\"; 1 unexpected: \"head.weight\"\n.rename = {{\"head.weight\", \"\"}} "
        "leaves a tensor "
        "out\n.strict = false loads the rest");
  CHECK(nn::parameter_hash(model) == before);

  const nn::LoadStateDictResult result = model.load_state_dict(dict, {.strict = false});
  CHECK(result.missing == std::vector<std::string>{"fc.bias"});
  CHECK(result.unexpected == std::vector<std::string>{"head.weight"});
  CHECK(ls::equal(model.fc.weight, other.fc.weight));
}

TEST_CASE(
    "a shape mismatch is an error that shows both and changes nothing; without .strict, the result has the name") {
  for (const ls::Tensor& other : {ls::ones({1, 3}), ls::Tensor()}) {
    Model model;
    const std::uint64_t before = nn::parameter_hash(model);
    const Model from;
    ls::StateDict dict = without(from.state_dict(), "fc.bias");
    dict.insert("fc.bias", other);
    CHECK(error_of([&] { model.load_state_dict(dict); }) ==
          std::string("load_state_dict: 1 of another shape: \"fc.bias\": the model has (3), the dict ") +
              (other.defined() ? "(1, 3)" : "an undefined tensor") + "\n.strict = false loads the rest");
    CHECK(nn::parameter_hash(model) == before);
    const ls::Tensor bias = model.fc.bias->detach().clone();
    CHECK(model.load_state_dict(dict, {.strict = false}).other_shape == std::vector<std::string>{"fc.bias"});
    CHECK(same_bits(model.fc.bias->detach(), bias));
    CHECK(same_bits(model.fc.weight->detach(), from.fc.weight->detach()));
  }
}

TEST_CASE("names with a wrapper's prefix get a hint, and many wrong names a short message") {
  Model model;
  ls::StateDict wrapped;
  for (const auto& [name, tensor] : model.state_dict()) wrapped.insert("module." + name, tensor);
  CHECK(contains(error_of([&] { model.load_state_dict(wrapped); }),
                 "\nthe dict's names begin with \"module\": pass .rename = {{\"module\", \"\"}}"));
  CHECK(model.load_state_dict(wrapped, {.rename = {{"module", ""}}}).missing.empty());
  ls::StateDict many;
  for (int i = 0; i < 1000; ++i) many.insert(std::string(500, 'x') + std::to_string(i), ls::Tensor());
  std::string text;  // longer than other errors, since it has the names
  try {
    model.load_state_dict(many);
  } catch (const ls::InvalidArgument& error) {
    text = error.what();
  }
  CHECK(contains(text, "and 980 more"));
}

TEST_CASE("parameter_hash depends on values, shapes, dtypes and buffers, and on nothing else") {
  ls::manual_seed(1);
  Model model;
  ls::manual_seed(1);
  Model twin;
  const std::uint64_t hash = nn::parameter_hash(model);
  CHECK(nn::parameter_hash(twin) == hash);
  twin.to("cpu:1");
  CHECK(nn::parameter_hash(twin) == hash);
  twin.steps->fill_(1);
  CHECK(nn::parameter_hash(twin) != hash);
  twin.steps->fill_(0);
  twin.fc.bias.master().detach().fill_(0.25);
  CHECK(nn::parameter_hash(twin) != hash);

  nn::Module row, column;
  row.add_buffer("b", ls::zeros({2, 3}));
  column.add_buffer("b", ls::zeros({3, 2}));
  CHECK(nn::parameter_hash(row) != nn::parameter_hash(column));
  nn::Module view;
  view.add_buffer("b", ls::zeros({3, 2}).t());
  CHECK(nn::parameter_hash(row) == nn::parameter_hash(view));
}

TEST_CASE("summary shows path, type, output shape, parameters and bytes, and restores the modes") {
  struct Net : nn::Module {
    nn::Sequential& body =
        add<nn::Sequential>("body", nn::Linear(784, 512), nn::ReLU(), nn::Dropout(0.5), nn::Linear(512, 10));
    nn::Identity& unused = add<nn::Identity>("unused");
    nn::Buffer& calls = add_buffer("calls", ls::zeros({1}));
    ls::Tensor forward(const ls::Tensor& x) const override { return body(x); }
  } net;
  net.body[2].eval();
  CHECK(net.summary({32, 784}) ==
        "module   type        output     parameters      bytes\n"
        "(model)  Net         (32, 10)            0          4\n"
        "body     Sequential  (32, 10)            0          0\n"
        "body.0   Linear      (32, 512)     401,920  1,607,680\n"
        "body.1   ReLU        (32, 512)           0          0\n"
        "body.2   Dropout     (32, 512)           0          0\n"
        "body.3   Linear      (32, 10)        5,130     20,520\n"
        "unused   Identity    -                   0          0\n"
        "total                              407,050  1,628,204\n");
  CHECK(net.is_training());
  CHECK(net.body[0].is_training());
  CHECK_FALSE(net.body[2].is_training());
  CHECK_THROWS_AS(net.summary({32, 7}), ls::InvalidArgument);
  CHECK(net.is_training());
  nn::Embedding words(10, 4);
  CHECK(contains(words.summary({2, 3}, {.dtype = ls::kInt64}), "(2, 3, 4)"));
}

TEST_CASE("StateDict::clone keeps the values while the module changes") {
  const nn::Linear layer(2, 2);
  const ls::StateDict live = layer.state_dict(), kept = live.clone();
  const ls::Tensor before = layer.weight->detach().clone();
  layer.weight->detach().fill_(9);
  CHECK(same_bits(live.at("weight"), layer.weight->detach()));
  CHECK(same_bits(kept.at("weight"), before));
  CHECK(kept.begin()->first == "weight");
  CHECK(kept.size() == 2);
}
