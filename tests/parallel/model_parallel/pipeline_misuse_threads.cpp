// Errors of pipelines, by text: chains and options that do not fit, loss functions that the other stages could not
// follow, and functions that need the whole model. Ranks are threads.
#include <algorithm>
#include <functional>
#include <string>
#include <vector>

#include <fmt/format.h>

#include "tests/support/groups.h"

namespace {

namespace par = ls::parallel;
namespace nn = ls::nn;

struct Net : nn::Module {
  nn::Linear& in = add<nn::Linear>("in", 4, 6);
  nn::ModuleList& blocks = add<nn::ModuleList>("blocks");
  nn::Linear& head = add<nn::Linear>("head", 6, 2);
  Net() {
    for (int i = 0; i < 3; ++i) blocks.push_back(nn::Linear(6, 6));
  }
  ls::Tensor forward(const ls::Tensor& x) const override {
    ls::Tensor y = in(x);
    for (const nn::Module& block : blocks) y = block(y);
    return head(y);
  }
};
struct NormNet : nn::Module {
  nn::Linear& in = add<nn::Linear>("in", 4, 6);
  nn::BatchNorm1d& norm = add<nn::BatchNorm1d>("norm", 6, nn::BatchNormOptions{.affine = false});
  ls::Tensor forward(const ls::Tensor& x) const override { return norm(in(x)); }
};

const std::vector<std::string> kChain = {"in", "blocks.*", "head"};

par::PipelineOptions with_chain(const std::vector<std::string>& chain) { return {.chain = chain}; }

// The constructor throws on all ranks, and leaves the model as it was.
void check_refused(int ranks, const par::PipelineOptions& options, const std::string& want) {
  const auto on_rank = [&](const Group& group) {
    Net net;
    CHECK(error_of([&] { par::Pipeline(net, par::DeviceMesh(group, {{"pp", ranks}}), options); }) == want);
    CHECK(net(ls::ones({2, 4})).shape() == ls::Shape{2, 2});
    CHECK(net.state_dict().size() == 10);
  };
  if (ranks == 1) return on_rank(nullptr);
  with_threads("local", ranks, on_rank);
}

// Calls body(run, rank) on two ranks with two stages.
void in_two_stages(const std::function<void(par::Pipeline& run, Net& net, int rank)>& body) {
  with_threads("local", 2, [&](const Group& group) {
    Net net;
    par::Pipeline run(net, par::DeviceMesh(group, {{"pp", 2}}), {.chain = kChain, .micro_batches_per_rank = 2});
    body(run, net, group->rank());
  });
}

using LossFunction = std::function<ls::Tensor(par::Pipeline& run, const ls::Tensor& x, const ls::Tensor& y)>;

ls::Tensor right_loss(par::Pipeline& run, const ls::Tensor& x, const ls::Tensor& y) {
  return nn::MSELoss()(run.module()(x), y);
}

ls::Tensor step(par::Pipeline& run, const LossFunction& loss_fn) {
  return run.backward(ls::ones({4, 4}), ls::zeros({4, 2}),
                      [&](const ls::Tensor& x, const ls::Tensor& y) { return loss_fn(run, x, y); });
}

// The loss function throws on the last stage; the other ranks get its text.
void check_loss_refused(const LossFunction& loss_fn, const std::string& want) {
  in_two_stages([&](par::Pipeline& run, Net&, int rank) {
    std::string text;
    try {
      step(run, loss_fn);
    } catch (const ls::Error& error) {
      text = error.what();
    }
    const std::string of_rank_1 = "micro-batch 0 in stage 1 (rank 1, row 1 of the schedule: 1F0): " + want;
    if (rank == 1)
      CHECK(text == of_rank_1);
    else
      CHECK_MESSAGE(text.ends_with("rank 1 has failed: Pipeline: " + of_rank_1), text);
  });
}

constexpr const char* kParts =
    ": the parameters are those of one stage of a pipeline, and other ranks have the others; ";

}  // namespace

TEST_CASE("chains that do not fit the model") {
  check_refused(1, with_chain({"in", "block.*", "head"}),
                "Pipeline: .chain: \"block.*\" names no module; paths are those of named_parameters() without the last "
                "name");
  check_refused(1, with_chain({"in", "blocks.*", "blocks.1", "head"}),
                "Pipeline: .chain names blocks.1 twice, the second time by \"blocks.1\"; name each module once");
  check_refused(1, with_chain({"in", "blocks", "blocks.1", "head"}),
                "Pipeline: .chain names blocks.1 twice, the second time by \"blocks.1\"; name each module once");
  check_refused(
      1, with_chain({"in", "blocks.*"}),
      "Pipeline: head has parameters and is in no module of .chain, so no stage would run it; name it in .chain, or "
      "remove it from the model");
  check_refused(1, {},
                "Pipeline: .chain is empty and Net is not a Sequential, whose children would be the chain; name the "
                "modules in the order in which they run: .chain = {\"embed\", \"blocks.*\", \"head\"}");
  NormNet norm_net;
  CHECK(error_of([&] {
          par::Pipeline(norm_net, par::DeviceMesh(nullptr, {{"pp", 1}}), with_chain({"in"}));
        }) ==
        "Pipeline: norm has buffers and is in no module of .chain, so no stage would run it; name it in .chain, or "
        "remove it from the model");
}

TEST_CASE("a rank that evaluates while the other one trains") {
  for (const int evaluates : {0, 1}) {
    in_two_stages([&](par::Pipeline& run, Net&, int rank) {
      const auto loss_fn = [&](const ls::Tensor& x, const ls::Tensor& y) { return right_loss(run, x, y); };
      const ls::Tensor x = ls::ones({4, 4}), y = ls::zeros({4, 2});
      const std::string text =
          error_of([&] { rank == evaluates ? run.evaluate(x, y, loss_fn) : run.backward(x, y, loss_fn); });
      CHECK(text ==
            fmt::format("Pipeline: rank {} of the axis evaluates, but rank {} trains; all ranks along it must call "
                        "the same method",
                        evaluates, 1 - evaluates));
    });
  }
}

TEST_CASE("options that do not fit the ranks") {
  check_refused(1, {.chain = kChain, .micro_batches_per_rank = 0},
                "Pipeline: 0 micro-batches and 1 model chunks per rank, expected 1 or more of each");
  check_refused(
      2, {.chain = kChain, .schedule = par::Schedule::kInterleaved, .micro_batches_per_rank = 2, .chunks_per_rank = 3},
      "Pipeline: 6 stages for a chain of 5 modules; use at most 5 ranks times chunks");
  check_refused(4, {.chain = kChain, .schedule = par::Schedule::kInterleaved, .micro_batches_per_rank = 6},
                "ScheduleTable: 6 micro-batches are no multiple of 4 ranks, which interleaved needs; use 4 or 8");
  check_refused(2, {.chain = kChain, .chunks_per_rank = 2},
                "ScheduleTable: 1f1b has one chunk for each rank, got 2; use interleaved, or 1 chunk");
  check_refused(2, {.chain = kChain, .split_before = {"blocks.9"}},
                "Pipeline: .split_before: \"blocks.9\" is no module of the chain");
  check_refused(2, {.chain = kChain, .split_before = {"blocks.0", "head"}},
                "Pipeline: .split_before names 2 modules, expected 1 for 2 stages");
  check_refused(3, {.chain = kChain, .split_before = {"head", "blocks.0"}},
                "Pipeline: .split_before: \"blocks.0\" does not come after the module before it");
  check_refused(
      2, {.chain = kChain, .micro_batches_per_rank = 4, .table = par::ScheduleTable::make(par::Schedule::k1F1B, 4, 4)},
      "Pipeline: .table has 4 ranks and 4 micro-batches, but the axis has 2 ranks and .micro_batches_per_rank "
      "is 4");
  Net net;
  CHECK(error_of([&] {
          par::Pipeline(net, par::DeviceMesh(nullptr, {{"dp", 1}, {"pp", 1}}), with_chain(kChain));
        }) == "Pipeline: expected a mesh of one axis, for example mesh[\"pp\"]; the mesh is dp 1 x pp 1");
}

TEST_CASE("stages that a rank cannot train, and ranks that differ") {
  with_threads("local", 3, [](const Group& group) {
    nn::Sequential net(nn::Linear(4, 6), nn::Tanh(), nn::Linear(6, 2));
    CHECK(error_of([&] {
            par::Pipeline(net, par::DeviceMesh(group, {{"pp", 3}}));
          }) ==
          "Pipeline: rank 1 has no parameters, but only 1; choose other stages with .split_before, or use fewer ranks");
  });
  with_threads("local", 2, [](const Group& group) {
    struct Shared : nn::Module {
      nn::BatchNorm1d& a = add<nn::BatchNorm1d>("a", 4);
      nn::BatchNorm1d& b = add<nn::BatchNorm1d>("b", 4);
      Shared() { b.running_mean = a.running_mean; }
    } net;
    CHECK(error_of([&] {
            par::Pipeline(net, par::DeviceMesh(group, {{"pp", 2}}), with_chain({"a", "b"}));
          }) ==
          "Pipeline: b.running_mean is a.running_mean, a buffer that stages of the ranks 0 and 1 would change apart; "
          "give each module its own");
  });
  with_threads("local", 2, [](const Group& group) {
    Net net;
    par::PipelineOptions options = with_chain(kChain);
    if (group->rank() == 1) options.split_before = {"head"};
    CHECK(error_of<ls::CommError>([&] {
            par::Pipeline(net, par::DeviceMesh(group, {{"pp", 2}}), options);
          }) ==
          "Pipeline: ranks have different options: rank 0 has blocks.2 in stage 1, rank 1 has blocks.2 in stage 0");
  });
  in_two_stages([](par::Pipeline& run, Net&, int rank) {
    const std::string text = error_of<ls::Error>([&] {
      run.backward(ls::full({4, 4}, rank), ls::zeros({4, 2}),
                   [&](const ls::Tensor& x, const ls::Tensor& y) { return right_loss(run, x, y); });
    });
    CHECK_MESSAGE(contains(text, "Pipeline: rank 1 of the axis has other tensors than rank 0, but all ranks along it"),
                  text);
  });
}

TEST_CASE("loss functions that the other stages could not follow") {
  check_loss_refused([](par::Pipeline&, const ls::Tensor& x, const ls::Tensor&) { return x.mean(); },
                     "Pipeline: the loss function did not call the module, so that its result does not depend on the "
                     "stages before; call run.module()(x) in it");
  check_loss_refused(
      [](par::Pipeline& run, const ls::Tensor& x, const ls::Tensor& y) {
        return right_loss(run, x, y) + right_loss(run, x, y);
      },
      "Pipeline: the loss function called the module twice, but the other stages run a micro-batch once; compute both "
      "results in one forward");
  check_loss_refused(
      [](par::Pipeline& run, const ls::Tensor& x, const ls::Tensor& y) { return right_loss(run, x * 2, y); },
      "Pipeline: the loss function called the module with another x than its own, which the first stage does not see; "
      "put what prepares x into the first module of the chain");
  check_loss_refused(
      [](par::Pipeline& run, const ls::Tensor& x, const ls::Tensor& y) {
        const ls::AutocastGuard autocast(ls::kBFloat16);
        return right_loss(run, x, y);
      },
      "Pipeline: the loss function changes autocast, which the stages before do not see; construct the AutocastGuard "
      "before backward is called");
  check_loss_refused(
      [](par::Pipeline& run, const ls::Tensor& x, const ls::Tensor& y) {
        const ls::NoGradGuard no_grad;
        return right_loss(run, x, y);
      },
      "Pipeline: the loss function called the module under a NoGradGuard, and the stages before would get no "
      "gradients; "
      "remove it");
  check_loss_refused(
      [](par::Pipeline& run, const ls::Tensor& x, const ls::Tensor& y) {
        const auto forward = [&](const ls::Tensor& t) { return run.module()(t); };
        return nn::MSELoss()(ls::autograd::checkpoint(forward, x), y);
      },
      "Pipeline: the loss function called the module inside autograd::checkpoint, but the other stages do not repeat "
      "their forward; call checkpoint in modules of the chain");
  check_loss_refused(
      [](par::Pipeline& run, const ls::Tensor& x, const ls::Tensor& y) {
        run.gathered([] {});
        return right_loss(run, x, y);
      },
      "Pipeline: gathered was called inside a step, in which other ranks run other stages; call it between steps");
  Net net;
  par::Pipeline alone(net, par::DeviceMesh(nullptr, {{"pp", 1}}), with_chain(kChain));
  const std::string nested = error_of([&] {
    step(alone, [](par::Pipeline& run, const ls::Tensor&, const ls::Tensor&) { return step(run, right_loss); });
  });
  CHECK_MESSAGE(contains(nested,
                         "Pipeline: a step was begun inside a step, by its loss function; call run.backward "
                         "after it"),
                nested);
  CHECK(step(alone, right_loss).dim() == 0);  // the next one is as ever
}

TEST_CASE("calls outside a step, and stages of other ranks") {
  in_two_stages([](par::Pipeline& run, Net& net, int rank) {
    CHECK(error_of([&] {
            net(ls::ones({4, 4}));
          }) ==
          "Pipeline: the module was called outside of a step, but this rank has some of its stages only; call "
          "run.backward or run.evaluate, or call it inside run.gathered");
    if (rank == 1) CHECK(error_of<ls::Error>([&] { net.in(ls::ones({4, 4})); }).starts_with("in: "));
    run.gathered([&] { CHECK(net(ls::ones({4, 4})).shape() == ls::Shape{4, 2}); });
    CHECK(error_of([&] { run.gathered([&] { step(run, right_loss); }); }) ==
          "Pipeline: a step was begun inside gathered, where each rank has all stages; call it after gathered");
  });
}

TEST_CASE("functions that need the whole model refuse stages") {
  in_two_stages([](par::Pipeline& run, Net& net, int) {
    const auto refused = [](const std::string& op, const std::string& fix) { return op + kParts + fix; };
    CHECK(error_of([&] { nn::clip_grad_norm_(net.parameters(), 1.0); }) ==
          refused("clip_grad_norm_", "call run.clip_grad_norm_(max_norm), which counts all slices"));
    CHECK(error_of([&] { (void)net.state_dict(); }) ==
          refused("state_dict", "save with parallel::save_checkpoint, or read whole parameters inside run.gathered"));
    CHECK(error_of([&] { net.load_state_dict({}); }) == refused("load_state_dict", "load with parallel::load_weights"));
    CHECK(error_of([&] { (void)nn::parameters_to_vector(net.parameters()); }) ==
          refused("parameters_to_vector", "gather it first, with run.gathered"));
    CHECK(error_of([&] { (void)nn::parameter_hash(net); }) == refused("parameter_hash", "call it inside run.gathered"));
    CHECK(error_of([&] { ls::optim::LBFGS(net.parameters()); }) ==
          refused("LBFGS", "the algorithm needs whole gradients; use another optimizer"));
    Net whole;
    ls::optim::AveragedModel average(whole);
    CHECK(error_of([&] { average.update_parameters(net); }) == refused("AveragedModel", "update inside run.gathered"));
    run.gathered([&] { average.update_parameters(net); });
    CHECK(error_of([&] { net.to(ls::kFloat64); }) ==
          refused("Module::to", "convert the model before the Pipeline is constructed"));
    CHECK(error_of([&] { ls::save_checkpoint("of_a_stage", {.model = &net}); }) ==
          refused("state_dict", "save with parallel::save_checkpoint, or read whole parameters inside run.gathered"));
    ls::optim::SGD optimizer(run.parameters(), {.lr = 0.1});
    const std::string fix =
        ": the optimizer has this rank's stages of a pipeline; use parallel::save_checkpoint and load_checkpoint, with "
        "{.model = &run, .optimizer = &optimizer}";
    CHECK(error_of([&] { (void)optimizer.state_dict(); }) == "state_dict" + fix);
    CHECK(error_of([&] { optimizer.load_state_dict({}); }) == "load_state_dict" + fix);
    CHECK(error_of([&] { ls::save_checkpoint("of_a_stage", {.optimizer = &optimizer}); }) == "save_checkpoint" + fix);
    step(run, right_loss);
    net.zero_grad();
    const auto has_gradient = [](const nn::Parameter& each) { return each.master().grad().defined(); };
    CHECK(std::ranges::none_of(net.parameters(), has_gradient));
    step(run, right_loss);
    CHECK(std::ranges::all_of(net.parameters(), has_gradient));
    optimizer.zero_grad();
    CHECK(std::ranges::none_of(net.parameters(), has_gradient));
  });
}

TEST_CASE("optimizers with parameters of other stages") {
  with_threads("local", 2, [](const Group& group) {
    const std::string want =
        "optimizer: a parameter is undefined, as those in pipeline stages of other ranks are; construct the optimizer "
        "with run.parameters() of the Pipeline, after it";
    Net net;
    const std::vector<nn::Parameter> all = net.parameters();
    ls::optim::AdamW adam(all);
    ls::optim::SGD sgd(all, {.lr = 0.1});
    ls::optim::LBFGS lbfgs(all);
    par::Pipeline run(net, par::DeviceMesh(group, {{"pp", 2}}), {.chain = kChain, .micro_batches_per_rank = 2});
    step(run, right_loss);
    for (ls::optim::Optimizer* const each :
         {static_cast<ls::optim::Optimizer*>(&adam), static_cast<ls::optim::Optimizer*>(&sgd)}) {
      CHECK(error_of([&] { each->step(); }) == want);
      CHECK(error_of([&] { each->zero_grad(); }) == want);
      CHECK(error_of([&] { par::save_checkpoint("of_all", {.model = &run, .optimizer = each}); })
                .ends_with("save_checkpoint: the optimizer has parameters that this rank's stages lack; construct it "
                           "with run.parameters()"));
    }
    CHECK(error_of([&] { lbfgs.step([] { return ls::zeros({}); }); }) == want);
    CHECK(error_of([&] { ls::optim::Lion{all}; }) == want);
    CHECK(error_of([&] { nn::clip_grad_value_(all, 1.0); }) != "");
  });
}

TEST_CASE("a change inside gathered is refused") {
  in_two_stages([](par::Pipeline& run, Net& net, int) {
    const auto text_of = [&](const std::function<void()>& change) {
      return error_of([&] {
        run.gathered([&] {
          const ls::NoGradGuard no_grad;
          change();
        });
      });
    };
    const auto want = [](const std::string& name) {
      return name +
             " was changed inside gathered, and other ranks may not have the change; change a model in stages by "
             "its optimizer or by parallel::load_checkpoint";
    };
    CHECK(text_of([&] { net.in.weight->fill_(1); }) == want("in.weight"));
    CHECK(text_of([&] { net.head.bias->select(0, 1).mul_(2); }) == want("head.bias"));
    CHECK(text_of([&] { (void)net.state_dict(); }) == "");
    CHECK(step(run, right_loss).dim() == 0);
  });
}

TEST_CASE("other modes on a model in stages") {
  in_two_stages([](par::Pipeline& run, Net& net, int) {
    CHECK(error_of([&] {
            par::Pipeline(net, par::DeviceMesh(run.group(), {{"pp", 2}}), with_chain(kChain));
          }) == "Pipeline: the model is in stages already");
    const std::string rest =
        ": the model is in pipeline stages over 2 ranks, which have different stages of its parameters, and several of "
        "them are in the mode's group, which would mix these; pass the group of another axis: mesh[\"dp\"].group()";
    CHECK(error_of([&] { par::DistributedDataParallel(net, run.group()); }) == "DistributedDataParallel" + rest);
    CHECK(error_of([&] { par::ShardedDataParallel(net, run.group()); }).starts_with("ShardedDataParallel: "));
    CHECK(error_of([&] {
            par::DataParallel(net, {"cpu:0", "cpu:1"});
          }) ==
          "DataParallel: the model is in the stages of a Pipeline, which its replicas could not run; train it with the "
          "Pipeline, or with DistributedDataParallel");
    par::GradientAccumulation other(net, {.micro_batches = 3});
    const std::string text = error_of<ls::Error>([&] {
      other.backward(ls::ones({6, 4}), ls::zeros({6, 2}),
                     [&](const ls::Tensor& x, const ls::Tensor& y) { return nn::MSELoss()(net(x), y); });
    });
    CHECK(text == "Pipeline: 3 micro-batches on this rank, but the schedule has 2");
  });
}

TEST_CASE("checkpoints: ranks with other parts, and files of other models") {
  in_two_stages([](par::Pipeline& run, Net&, int rank) {
    ls::optim::AdamW optimizer(run.parameters());
    const std::string parts = error_of(
        [&] { par::save_checkpoint("parts", {.model = &run, .optimizer = rank == 0 ? &optimizer : nullptr}); });
    CHECK_MESSAGE(contains(parts, "Pass the same parts on all ranks"), parts);
    ls::StateDict extra;
    step(run, right_loss);
    optimizer.step();
    par::save_checkpoint("good", {.model = &run, .optimizer = &optimizer});
  });
  ls::Metadata metadata;
  const ls::StateDict good = ls::load("good", &metadata);
  const auto write = [&](const std::string& path, const std::string& without, const std::string& with) {
    ls::StateDict dict;
    for (const auto& [name, tensor] : good) {
      if (name != without) dict.insert(name, tensor);
    }
    if (!with.empty()) dict.insert(with, ls::ones({1}));
    ls::save(dict, path, metadata);
  };
  write("missing", "model.head.bias", "");
  write("unexpected", "", "model.blocks.7.bias");
  write("group", "optimizer.param_group.in.bias", "");
  in_two_stages([](par::Pipeline& run, Net& net, int) {
    ls::optim::AdamW optimizer(run.parameters());
    const ls::Tensor before = net.parameters()[0].master().detach().clone();
    const auto text_of = [&](const std::string& path) {
      return error_of([&] { par::load_checkpoint(path, {.model = &run, .optimizer = &optimizer}); });
    };
    CHECK(text_of("missing") == "load_checkpoint: missing: 1 missing: \"head.bias\"");
    CHECK(text_of("unexpected") == "load_checkpoint: unexpected: 1 unexpected: \"blocks.7.bias\"");
    const std::string group = text_of("group");
    CHECK_MESSAGE(contains(group, "missing in the state: \"in.bias\""), group);
    ls::optim::AdamW fewer(std::vector<nn::Parameter>{net.parameters()[0]});
    const std::string left_out = error_of([&] { par::load_checkpoint("good", {.model = &run, .optimizer = &fewer}); });
    CHECK_MESSAGE(contains(left_out, "missing in the optimizer: "), left_out);
    CHECK(same_bits(net.parameters()[0].master().detach(), before));
    par::load_checkpoint("good", {.model = &run, .optimizer = &optimizer});
    CHECK(!same_bits(net.parameters()[0].master().detach(), before));
  });
}
