// Forward hooks: order, replaced inputs and outputs, removal, errors, recomputation.
#include <memory>
#include <string>
#include <vector>

#include "support.h"

namespace {

using Inputs = std::vector<ls::Tensor>;

struct Sum : nn::Module {
  ls::Tensor forward(const ls::Tensor& x) const override { return x * 1; }
  ls::Tensor forward_inputs(const Inputs& inputs) const override { return inputs[0] + inputs[1]; }
};

}  // namespace

TEST_CASE("hooks run before and after forward, in order of registration, and see the module and its tensors") {
  nn::Sequential model{nn::ReLU()};
  std::string order;
  const ls::Tensor x = ls::tensor({-1.0, 2.0});
  const auto before = [&](const char* mark) {
    return [&order, &model, x, mark](const nn::Module& module, const Inputs& inputs) -> Inputs {
      CHECK(&module == &model[0]);
      CHECK(ls::equal(inputs.at(0), x));
      order += mark;
      return {};
    };
  };
  const auto after = [&](const char* mark) {
    return [&order, x, mark](const nn::Module&, const Inputs& inputs, const ls::Tensor& y) -> ls::Tensor {
      CHECK(ls::equal(inputs.at(0), x));
      CHECK(ls::equal(y, ls::tensor({0.0, 2.0})));
      order += mark;
      return {};
    };
  };
  model[0].register_forward_hook(after("c"));
  model[0].register_forward_pre_hook(before("a"));
  model[0].register_forward_pre_hook(before("b"));
  model[0].register_forward_hook(after("d"));
  CHECK(ls::equal(model(x), ls::tensor({0.0, 2.0})));
  CHECK(order == "abcd");
  model(Inputs{x});
  CHECK(order == "abcdabcd");
  model[0].forward(x);  // not a call of the module
  CHECK(order == "abcdabcd");
}

TEST_CASE("a hook's result replaces the inputs or the output, and is differentiated") {
  nn::Linear fc(1, 1, {.bias = false});
  fc.weight->detach().fill_(3);
  fc.register_forward_pre_hook([](const nn::Module&, const Inputs& in) { return Inputs{in[0] * 2}; });
  fc.register_forward_pre_hook([](const nn::Module&, const Inputs& in) { return Inputs{in[0] + 1}; });
  fc.register_forward_hook([](const nn::Module&, const Inputs& in, const ls::Tensor& y) { return y * y + in[0] * 0; });
  const ls::Tensor x = ls::tensor({{5.0}}, {.requires_grad = true}), y = fc(x);
  CHECK(y.item<double>() == 33 * 33);  // (3 (2 x + 1))^2
  y.backward();
  CHECK(x.grad().item<double>() == 2 * 33 * 6);
  CHECK(fc.weight->grad().item<double>() == 2 * 33 * 11);
}

TEST_CASE("a call with one input runs forward, and with several, or if a hook makes several, forward_inputs") {
  Sum sum;
  const ls::Tensor one = ls::ones({2});
  sum.register_forward_hook([](const nn::Module&, const Inputs&, const ls::Tensor&) { return ls::Tensor(); });
  CHECK(ls::equal(sum(one), one));
  CHECK(ls::equal(sum({one, one}), one * 2));
  sum.register_forward_pre_hook([](const nn::Module&, const Inputs& in) { return Inputs{in[0], in[0] * 4}; });
  CHECK(ls::equal(sum(one), one * 5));
}

TEST_CASE("a handle removes its hook, also after the module has moved or is gone, and from within the hook") {
  auto model = std::make_unique<nn::Sequential>(nn::Identity());
  int calls = 0;
  const auto count = [&](const nn::Module&, const Inputs&) -> Inputs { return ++calls, Inputs(); };
  ls::HookHandle first = model->register_forward_pre_hook(count), second = model->register_forward_pre_hook(count);
  ls::HookHandle once;
  once = model->register_forward_pre_hook([&](const nn::Module&, const Inputs&) -> Inputs {
    once.remove();
    return calls += 100, Inputs();
  });
  nn::Sequential moved = std::move(*model);
  model.reset();
  const ls::Tensor x = ls::ones({1});
  moved(x);
  CHECK(calls == 102);
  first.remove(), first.remove();
  moved(x);
  CHECK(calls == 103);
  {
    const nn::Sequential gone = std::move(moved);
    second.remove();
    gone(x);
  }
  CHECK(calls == 103);
}

TEST_CASE("an exception of a hook has the module's path, and an empty hook is refused") {
  struct Net : nn::Module {
    nn::Linear& fc = add<nn::Linear>("fc", 2, 2);
    ls::Tensor forward(const ls::Tensor& x) const override { return fc(x); }
  } net;
  net.fc.register_forward_pre_hook(
      [](const nn::Module&, const Inputs&) -> Inputs { throw ls::InvalidArgument("not today"); });
  CHECK(error_of([&] { net(ls::ones({1, 2})); }) == "fc: not today");
  CHECK(error_of([&] { net.register_forward_hook({}); }) ==
        "register_forward_hook: the hook is empty; pass a function");
}

TEST_CASE("autograd::checkpoint repeats the hooks with the forward, and their results") {
  nn::Linear fc(2, 2);
  int calls = 0;
  fc.register_forward_pre_hook([](const nn::Module&, const Inputs& in) { return Inputs{in[0] * 3}; });
  fc.register_forward_hook([&](const nn::Module&, const Inputs&, const ls::Tensor& y) { return ++calls, y * y; });
  const auto gradient = [&](bool recompute) {
    const ls::Tensor x = ls::ones({4, 2}, {.requires_grad = true});
    ls::sum(recompute ? ls::autograd::checkpoint(fc, x) : fc(x)).backward();
    return x.grad();
  };
  const ls::Tensor plain = gradient(false);
  CHECK(calls == 1);
  CHECK(same_bits(gradient(true), plain));
  CHECK(calls == 3);
}
