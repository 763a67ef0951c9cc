// Models whose forward does something else than their chain: a pipeline would leave it out, and so refuses the step, on
// all ranks and before any message. Ranks are threads.
#include <functional>
#include <string>
#include <vector>

#include "tests/support/groups.h"

namespace {

namespace par = ls::parallel;
namespace nn = ls::nn;

struct ChainNet : nn::Module {
  using Body = std::function<ls::Tensor(const ChainNet& net, const std::vector<ls::Tensor>& in)>;
  nn::Linear& in = add<nn::Linear>("in", 4, 4);
  nn::Sequential& blocks = add<nn::Sequential>("blocks", nn::Linear(4, 4), nn::Tanh(), nn::Linear(4, 4));
  nn::Linear& out = add<nn::Linear>("out", 4, 4);
  nn::Tanh& tanh = add<nn::Tanh>("tanh");
  Body body;
  explicit ChainNet(Body function) : body(std::move(function)) {}
  ls::Tensor forward(const ls::Tensor& x) const override { return body(*this, {x}); }
  ls::Tensor forward_inputs(const std::vector<ls::Tensor>& inputs) const override { return body(*this, inputs); }
};

const std::vector<std::string> kChainOfNet = {"in", "blocks.*", "out"};

ls::Tensor train_once(par::Pipeline& run) {
  return run.backward(ls::ones({4, 4}), ls::zeros({4, 4}),
                      [&](const ls::Tensor& x, const ls::Tensor& y) { return nn::MSELoss()(run.module()(x), y); });
}

// The error of the first step, on one rank and on both of two.
void check_forward_refused(const ChainNet::Body& body, const std::string& want) {
  const auto on_rank = [&](const Group& group) {
    ChainNet net(body);
    const par::DeviceMesh mesh(group, {{"pp", group ? group->size() : 1}});
    par::Pipeline run(net, mesh["pp"], {.chain = kChainOfNet, .micro_batches_per_rank = 2});
    const std::string text = error_of<ls::Error>([&] { train_once(run); });
    CHECK_MESSAGE(contains(text, want), text);
  };
  on_rank(nullptr);
  with_threads("local", 2, on_rank);
}

}  // namespace

TEST_CASE("a forward that does something else than its chain") {
  using In = const std::vector<ls::Tensor>&;
  using Net = const ChainNet&;
  check_forward_refused(
      [](Net net, In x) { return net.out(net.blocks(ls::tanh(net.in(x[0])))); },
      "Pipeline: the model's forward calls blocks.0 with other tensors than the result of in, which is "
      "all that its stage gets; put what is computed between the two into one of them, or name its "
      "module in .chain");
  check_forward_refused([](Net net, In x) { return net.out(net.blocks(net.tanh(net.in(x[0])))); },
                        "calls blocks.0 with other tensors than the result of in,");
  check_forward_refused(
      [](Net net, In x) {
        const ls::Tensor y = net.in(x[0]);
        return net.out(y + net.blocks(y));
      },
      "calls out with other tensors than the result of blocks.2,");
  check_forward_refused(
      [](Net net, In x) {
        return net.out(std::vector<ls::Tensor>{net.blocks(net.in(x[0])), x[0]});
      },
      "calls out with other tensors than the result of blocks.2,");
  check_forward_refused(
      [](Net net, In x) {
        const ls::Tensor y = net.in(x[0]);
        return net.out(ls::cat({net.blocks(y), y}, 0));
      },
      "calls out with other tensors than the result of blocks.2,");
  check_forward_refused([](Net net, In x) { return net.out(net.blocks(net.in(2 * x[0]))); },
                        "Pipeline: the model's forward calls in with other tensors than the model's inputs, which are "
                        "what its stage gets; put what prepares them into in");
  check_forward_refused(
      [](Net net, In x) { return net.out(net.blocks(net.in(x[0]))).flatten(); },
      "Pipeline: the model's forward returns something else than the result of out, which is what the "
      "loss function gets; put what follows into out or into the loss function");
  check_forward_refused(
      [](Net net, In x) { return net.out(net.blocks(net.in(x[0])).select(1, 0)); },
      "Pipeline: the model's forward does something else with the result of blocks.2 than to call the "
      "next module of the chain; put it into a module (select: ");
  check_forward_refused(
      [](Net net, In x) { return net.out(net.in(net.blocks(x[0]))); },
      "Pipeline: the model's forward calls blocks.0 where the chain has in; name the modules in .chain "
      "in the order of their calls");
  check_forward_refused(
      [](Net net, In x) { return net.out(net.blocks(net.blocks(net.in(x[0])))); },
      "Pipeline: the model's forward calls blocks.0 a second time, but a stage runs it once; give the "
      "chain one module for each call");
  check_forward_refused([](Net net, In x) { return net.blocks(net.in(x[0])); },
                        "Pipeline: the model's forward does not call out, which is in the chain");
  check_forward_refused(
      [](Net net, In x) {
        return net.out(ls::autograd::checkpoint([&](const ls::Tensor& y) { return net.blocks(y); }, net.in(x[0])));
      },
      "the model's forward");
}

TEST_CASE("a forward that differs in training only, and the other way round") {
  for (const bool when : {true, false}) {
    ChainNet net([when](const ChainNet& own, const std::vector<ls::Tensor>& x) {
      const ls::Tensor y = own.out(own.blocks(own.in(x[0])));
      return own.is_training() == when ? ls::tanh(y) : y;
    });
    par::Pipeline run(net, par::DeviceMesh(nullptr, {{"pp", 1}}), {.chain = kChainOfNet, .micro_batches_per_rank = 2});
    net.train(!when);
    train_once(run);
    net.train(when);
    const std::string text = error_of([&] { train_once(run); });
    CHECK_MESSAGE(contains(text, "returns something else than the result of out"), text);
  }
}

TEST_CASE("hooks of modules and of the chain's run once for each micro-batch") {
  ChainNet net([](const ChainNet& own, const std::vector<ls::Tensor>& x) { return own.out(own.blocks(own.in(x[0]))); });
  int calls = 0;
  const auto count = [&](const nn::Module&, const std::vector<ls::Tensor>&) {
    ++calls;
    return std::vector<ls::Tensor>();
  };
  const ls::HookHandle handle = net.out.register_forward_pre_hook(count);
  par::Pipeline run(net, par::DeviceMesh(nullptr, {{"pp", 1}}), {.chain = kChainOfNet, .micro_batches_per_rank = 2});
  train_once(run);
  CHECK(calls == 2);
}
