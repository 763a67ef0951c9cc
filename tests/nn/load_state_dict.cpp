// load_state_dict with names of other programs, and with .assign.
#include "support.h"

namespace {

struct Net : nn::Module {
  nn::Linear& up = add<nn::Linear>("up", 3, 5);
  nn::Linear& down = add<nn::Linear>("down", 5, 3);
  nn::BatchNorm1d& norm = add<nn::BatchNorm1d>("norm", 3);
  nn::Parameter& scale = add_parameter("scale", ls::ones({}));
  ls::Tensor forward(const ls::Tensor& x) const override { return norm(down(ls::relu(up(x)))) * scale; }
};

struct Tied : nn::Module {
  nn::Linear& first = add<nn::Linear>("first", 4, 4);
  nn::Linear& second = add<nn::Linear>("second", 4, 4);
  Tied() { second.weight = first.weight; }
  ls::Tensor forward(const ls::Tensor& x) const override { return second(first(x)); }
};

template <class M>
M seeded(std::uint64_t seed) {
  ls::manual_seed(seed);
  return M();
}

template <class M>
M deferred(std::uint64_t seed) {
  const nn::DeferredInit deferred(seed);
  return M();
}

// The tensors of a model, each changed by `change(name, tensor)`; an undefined result is left out.
template <class Change>
ls::StateDict changed(const nn::Module& model, const Change& change) {
  ls::StateDict result;
  for (const auto& [name, tensor] : model.state_dict()) {
    const ls::Tensor value = change(name, tensor);
    if (value.defined()) result.insert(name, value);
  }
  return result;
}

void check_equal(const nn::Module& model, const nn::Module& want) {
  const ls::StateDict own = model.state_dict();
  for (const auto& each : want.state_dict()) CHECK_MESSAGE(same_bits(own.at(each.first), each.second), each.first);
}

void check_empty(const nn::LoadStateDictResult& result) {
  CHECK(result.missing.empty());
  CHECK(result.unexpected.empty());
  CHECK(result.other_shape.empty());
}

}  // namespace

TEST_CASE("names, transposed matrices, tied tensors, counters and shapes of one element, copied and assigned") {
  for (const bool assign : {false, true}) {
    CAPTURE(assign);
    const Net want = seeded<Net>(1);
    ls::StateDict foreign;
    for (const auto& [name, tensor] : want.state_dict()) {
      if (name.ends_with("num_batches_tracked")) continue;
      foreign.insert("model." + name, name == "up.weight" ? tensor.t().contiguous().clone()
                                      : name == "scale"   ? tensor.reshape({1}).clone()
                                                          : tensor.clone());
    }
    foreign.insert("model.mask", ls::ones({2}));
    Net net = seeded<Net>(2);
    check_empty(net.load_state_dict(
        foreign, {.assign = assign, .rename = {{"model.mask", ""}, {"model", ""}}, .transpose = {"up"}}));
    check_equal(net, want);
    CHECK(net.scale->shape() == ls::Shape{});

    const Tied tied = seeded<Tied>(1);
    for (const char* left_out : {"first.weight", "second.weight"}) {
      Tied other = seeded<Tied>(2);
      check_empty(other.load_state_dict(
          changed(tied, [&](const std::string& name,
                            const ls::Tensor& tensor) { return name == left_out ? ls::Tensor() : tensor.clone(); }),
          {.assign = assign}));
      check_equal(other, tied);
      CHECK(other.first.weight == other.second.weight);
    }
  }
}

TEST_CASE("errors have all names, and advice only if something would be loaded") {
  Net net = seeded<Net>(1);
  const auto error = [&](const ls::StateDict& dict) {
    try {
      net.load_state_dict(dict);
    } catch (const ls::InvalidArgument& e) {
      return std::string(e.what());
    }
    return std::string();
  };
  CHECK(
      error({{"uq.weight", ls::ones({5, 3})}, {"up.bias", ls::ones({5})}, {"down.weight", ls::ones({3, 6})}}) ==
      "load_state_dict: 7 missing: \"scale\", \"up.weight\", \"down.bias\", \"norm.weight\", \"norm.bias\", "
      "\"norm.running_mean\", \"norm.running_var\"; 1 unexpected: \"uq.weight\"; 1 of another shape: \"down.weight\": "
      "the model has (3, 5), the dict (3, 6)\n\"up.weight\" is similar to the dict's \"uq.weight\"\n.strict = false "
      "loads the rest");
  CHECK(!contains(error({{"a", ls::ones({1})}}), ".strict"));
  CHECK(error(changed(net, [](const std::string& name,
                              const ls::Tensor& tensor) { return name == "up.weight" ? tensor.t() : tensor; })) ==
        "load_state_dict: 1 of another shape: \"up.weight\": the model has (5, 3), the dict (3, 5)\nthe dict has "
        "\"up.weight\" transposed: pass .transpose with patterns of such names\nSquare matrices cannot be recognised: "
        "pass those of layers of the same kind, too (Hugging Face's Conv1D: c_attn, c_proj, c_fc)");
  nn::Sequential wrapper;
  wrapper.push_back(seeded<Net>(1));
  CHECK(error_of([&] { wrapper.load_state_dict(Tied().state_dict()); }).find(".strict") == std::string::npos);
  CHECK(contains(
      error_of([&] { net.load_state_dict(net.state_dict(), {.rename = [](const std::string&) { return "scale"; }}); }),
      "load_state_dict: .rename gives several tensors the name \"scale\", "));
  check_equal(net, seeded<Net>(1));
}

TEST_CASE("assigned tensors share memory with the dict's, and have their dtypes") {
  Net want = seeded<Net>(1);
  want.to(ls::kFloat64);
  Net net = seeded<Net>(2);
  net.up.weight->requires_grad_(false);
  net(ls::ones({2, 3})).backward(ls::ones({2, 3}));
  const ls::Tensor before = net.down.weight.master();
  ls::StateDict dict = want.state_dict().clone();
  check_empty(net.load_state_dict(dict, {.assign = true}));
  check_equal(net, want);
  for (const auto& [name, tensor] : net.state_dict()) CHECK(tensor.raw_data() == dict.at(name).raw_data());
  CHECK(net.down.weight.master().dtype() == ls::kFloat64);
  CHECK(before.dtype() == ls::kFloat64);  // handles stay valid
  CHECK(!net.down.weight.master().grad().defined());
  CHECK(net.down.weight.master().requires_grad());
  CHECK(!net.up.weight.master().requires_grad());
  CHECK(!dict.at("down.weight").requires_grad());
  ls::optim::SGD optimizer(net.parameters(), {.lr = 0.1});
  const ls::Tensor x = ls::ones({2, 3}, {.dtype = ls::kFloat64});
  want.up.weight->requires_grad_(false);
  ls::optim::SGD other(want.parameters(), {.lr = 0.1});
  for (int i = 0; i < 2; ++i) {
    for (Net* each : {&net, &want}) {
      const ls::Tensor y = (*each)(x);
      ls::sum(y * y).backward();
    }
    optimizer.step();
    other.step();
  }
  check_equal(net, want);
  CHECK(same_bits(dict.at("down.weight"), want.down.weight->detach()));  // trained in the dict's memory
}

TEST_CASE("tensors that are not contiguous are copied when they are assigned") {
  const Net want = seeded<Net>(1);
  const ls::Tensor transposed = want.up.weight->detach().t().contiguous();
  Net net = seeded<Net>(2);
  net.load_state_dict(
      changed(want, [&](const std::string& name,
                        const ls::Tensor& tensor) { return name == "up.weight" ? transposed.t() : tensor.clone(); }),
      {.assign = true});
  check_equal(net, want);
  CHECK(net.up.weight.master().is_contiguous());
  CHECK(net.up.weight.master().raw_data() != transposed.raw_data());
}

TEST_CASE("a deferred model takes the dict's tensors, and initial values for those that it lacks") {
  const Net want = seeded<Net>(1);
  Net net = deferred<Net>(2);
  const ls::StateDict dict = want.state_dict();
  check_empty(net.load_state_dict(dict, {.assign = true}));
  check_equal(net, want);
  CHECK(net.up.weight.master().raw_data() == dict.at("up.weight").raw_data());
  CHECK(net.up.weight.master().requires_grad());

  Net part = deferred<Net>(2);
  const auto bias = [](const std::string& name, const ls::Tensor& tensor) {
    return name == "up.bias" ? tensor : ls::Tensor();
  };
  CHECK(part.load_state_dict(changed(want, bias), {.strict = false, .assign = true}).missing.size() == 8);
  Net plain = seeded<Net>(2);
  plain.load_state_dict(changed(want, bias), {.strict = false});
  check_equal(part, plain);

  CHECK(contains(error_of([&] { plain.load_state_dict(deferred<Net>(2).state_dict()); }), "nn::materialize(module)"));
  CHECK(contains(error_of([&] { plain.load_state_dict(deferred<Net>(2).state_dict(), {.assign = true}); }),
                 "nn::materialize(module)"));
}

TEST_CASE("a deferred model with a tied tensor takes it from a dict that has one of its names") {
  const Tied want = seeded<Tied>(1);
  for (const char* left_out : {"first.weight", "second.weight"}) {
    Tied net = deferred<Tied>(2);
    const ls::StateDict dict = changed(want, [&](const std::string& name, const ls::Tensor& tensor) {
      return name == left_out ? ls::Tensor() : tensor;
    });
    check_empty(net.load_state_dict(dict, {.assign = true}));
    check_equal(net, want);
    CHECK(net.first.weight == net.second.weight);
    CHECK(net.first.weight.master().raw_data() == want.first.weight.master().raw_data());
  }
  Tied net = deferred<Tied>(2);
  const auto biases = [](const std::string& name, const ls::Tensor& tensor) {
    return name.ends_with(".bias") ? tensor : ls::Tensor();
  };
  CHECK(net.load_state_dict(changed(want, biases), {.strict = false, .assign = true}).missing.size() == 2);
}

TEST_CASE("an assignment that fails changes nothing") {
  Net net = seeded<Net>(1);
  const auto integers = [](const std::string& name, const ls::Tensor& tensor) {
    return name == "norm.bias" ? tensor.to(ls::kInt64) : ls::zeros_like(tensor);
  };
  CHECK(error_of([&] { net.load_state_dict(changed(net, integers), {.assign = true}); }) ==
        "load_state_dict: .assign: \"norm.bias\" is i64 in the dict, but parameters need a floating-point dtype; load "
        "without .assign, which converts");
  CHECK(contains(error_of([&] { net.load_state_dict({{"scale", ls::zeros({})}}, {.assign = true}); }), "8 missing"));
  check_equal(net, seeded<Net>(1));
}
