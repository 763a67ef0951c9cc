// Errors of tensor parallelism, by text, on all ranks, and refusals of functions that need whole parameters.

#include <fmt/format.h>

#include "tests/parallel/model_parallel/failing_slices.h"

namespace par = ls::parallel;
namespace nn = ls::nn;

namespace {

struct Mlp : nn::Module {
  nn::Linear& up = add<nn::Linear>("up", 8, 24);
  nn::GELU& act = add<nn::GELU>("act");
  nn::Linear& down = add<nn::Linear>("down", 24, 8);
  ls::Tensor forward(const ls::Tensor& x) const override { return down(act(up(x))); }
};

struct Net : nn::Module {
  nn::Embedding& tokens = add<nn::Embedding>("tokens", 8, 8);
  Mlp& mlp = add<Mlp>("mlp");
  nn::Linear& head = add<nn::Linear>("head", 8, 8);
  bool is_wide = false;  // the columns of all ranks where those of this one are expected
  ls::Tensor forward(const ls::Tensor& ids) const override {
    const ls::Tensor x = tokens(ids);
    if (!is_wide) return head(mlp(x));
    return mlp.down(ls::zeros({2, 24}));
  }
};

const par::ParallelPlan kMlp = {{"mlp.up", par::ColwiseParallel{}}, {"mlp.down", par::RowwiseParallel{}}};

void check_plan(const par::ParallelPlan& plan, int slices, const std::string& want, bool tied = false) {
  Net net;
  if (tied) net.head.weight = net.tokens.weight;
  const auto before = net.named_parameters().size();
  CHECK_THROWS_WITH_AS(
      par::parallelize(net, par::DeviceMesh(nullptr, {{"tp", 1}}), {.tensor_slices = slices, .plan = plan}),
      want.c_str(), ls::InvalidArgument);
  CHECK(net.named_parameters().size() == before);
  CHECK(net(ls::arange(3)).size(1) == 8);  // as it was
}

}  // namespace

TEST_CASE("slices that do not fit the ranks") {
  with_threads("local", 3, [](const Group& group) {
    Net net;
    const par::DeviceMesh mesh(group, {{"tp", 3}});
    CHECK_THROWS_WITH_AS(
        par::parallelize(net, mesh["tp"], {.tensor_slices = 4, .plan = kMlp}),
        "parallelize: 4 tensor slices cannot be distributed evenly to 3 ranks of tp; use 1, 2 or 4 ranks",
        ls::InvalidArgument);
    CHECK_THROWS_WITH_AS(par::parallelize(net, mesh["tp"], {.tensor_slices = -1, .plan = kMlp}),
                         "parallelize: -1 tensor slices, expected 1 or more, or 0 for as many as ranks",
                         ls::InvalidArgument);
    CHECK_THROWS_WITH_AS(par::parallelize(net, mesh["tp"], {.tensor_slices = 9, .plan = kMlp}),
                         "parallelize: 9 tensor slices cannot be distributed evenly to 3 ranks of tp; use 9 ranks",
                         ls::InvalidArgument);
  });
  with_threads("local", 2, [](const Group& group) {
    Net net;
    const par::DeviceMesh mesh(group, {{"dp", 1}, {"tp", 2}});
    CHECK_THROWS_WITH_AS(
        par::parallelize(net, mesh, {.plan = kMlp}),
        "parallelize: the mesh has the axes dp 1 x tp 2; pass the one whose ranks share the model, for "
        "example mesh[\"tp\"]",
        ls::InvalidArgument);
    const int own = group->rank() == 0 ? 2 : 4;
    CHECK_THROWS_WITH_AS(par::parallelize(net, mesh["tp"], {.tensor_slices = own, .plan = kMlp}),
                         "parallelize: ranks have different options: rank 0 has 2 slices, rank 1 has 4 slices",
                         ls::CommError);
  });
}

TEST_CASE("plans that do not fit the model") {
  check_plan(kMlp, 16,
             "parallelize: mlp.up: 24 outputs cannot be cut into 16 slices; use a number of slices that divides 24");
  const auto up = [](const par::ColwiseParallel& style) {
    return par::ParallelPlan{{"mlp.up", style}, {"mlp.down", par::RowwiseParallel{}}};
  };
  check_plan(up({.parts = 5}), 2, "parallelize: mlp.up: .parts = 5: 24 outputs are not 5 equal parts");
  check_plan(up({.parts = 3}), 16,
             "parallelize: mlp.up: 24 outputs in 3 parts: 8 of each part cannot be cut into 16 slices; use a number of "
             "slices that divides 8");
  check_plan(up({.parts = 3, .multiple_of = 4}), 4,
             "parallelize: mlp.up: 24 outputs in 3 parts: 8 of each part in 4 slices: 2 columns are not whole heads of "
             "4; use 1 or 2 slices");
  check_plan(
      up({.multiple_of = 4}), 4,
      "parallelize: mlp.up: 24 outputs in 4 slices: 6 columns are not whole heads of 4; use 1, 2, 3 or 6 slices");
  check_plan(up({.parts = 0}), 2, "parallelize: mlp.up: .parts is 0, .multiple_of 1, .repeat 1; expected 1 or more");
  check_plan({{"mlp.act", par::ColwiseParallel{}}}, 2,
             "parallelize: pattern \"mlp.act\" names GELU; ColwiseParallel is for Linear");
  check_plan(
      {{"mlp.*.1", par::ColwiseParallel{}}}, 2,
      "parallelize: .plan: pattern \"mlp.*.1\" names no module; paths are those of named_parameters() without the "
      "last name");
  check_plan({{"mlp.up", par::ColwiseParallel{}}, {"*.up", par::RowwiseParallel{}}}, 2,
             "parallelize: mlp.up has two styles, by the patterns \"mlp.up\" and \"*.up\"");
  check_plan(
      {{"mlp.down", par::RowwiseParallel{}}}, 2,
      "parallelize: mlp.down is RowwiseParallel, but its parent has no ColwiseParallel linear before it: it would "
      "get whole rows");
  check_plan({{"mlp.up", par::ColwiseParallel{}}}, 2,
             "parallelize: mlp.up is ColwiseParallel, but its parent has no RowwiseParallel linear that takes its "
             "columns; name one, or set .gather_output");
  check_plan(
      {{"tokens", par::VocabParallel{}}}, 16,
      "parallelize: tokens: a vocabulary of 8 cannot be cut into 16 slices of 1 rows, of which the last would be "
      "empty");
  check_plan({{"tokens", par::VocabParallel{}}}, 2,
             "parallelize: head.weight is tokens.weight, which is cut along the vocabulary; give head the style "
             "VocabParallel, too",
             /*tied=*/true);
  check_plan({{"head", par::ColwiseParallel{.gather_output = true}}}, 2,
             "parallelize: head.weight is tokens.weight, too; ColwiseParallel is for a weight of one layer",
             /*tied=*/true);
}

TEST_CASE("activations of another width") {
  with_threads("local", 2, [](const Group& group) {
    const par::DeviceMesh mesh(group, {{"tp", 2}});
    Net net;
    par::parallelize(net, mesh["tp"], {.plan = kMlp});
    net.is_wide = true;
    CHECK_THROWS_WITH_AS(
        net(ls::arange(3)),
        "mlp.down: linear: x is (2, 24) f32 cpu, expected 12 columns, those of this rank's 1 of 2 slices; take "
        "the number of heads from the tensor: reshape({t.size(0), t.size(1), -1, head_dim})",
        ls::InvalidArgument);
  });
}

namespace {

struct Reshapes : nn::Module {
  nn::Linear& up = add<nn::Linear>("up", 8, 8);
  nn::Linear& down = add<nn::Linear>("down", 8, 8);
  ls::Tensor forward(const ls::Tensor& x) const override { return down(up(x).reshape({x.size(0), 2, 4}).flatten(1)); }
};
struct Leaves : nn::Module {
  nn::Linear& up = add<nn::Linear>("up", 8, 8);
  nn::Linear& down = add<nn::Linear>("down", 8, 8);
  ls::Tensor forward(const ls::Tensor& x) const override { return up(x); }
};
struct Drops : nn::Module {
  nn::Linear& up = add<nn::Linear>("up", 8, 8);
  nn::Linear& down = add<nn::Linear>("down", 8, 8);
  ls::Tensor forward(const ls::Tensor& x) const override {
    const ls::Tensor y = up(x);
    return down(y * ls::dropout(ls::ones({1, 1}), 0.5));
  }
};

template <class Model>
void check_forward(const std::string& want) {
  with_threads("local", 2, [&](const Group& group) {
    const par::DeviceMesh mesh(group, {{"tp", 2}});
    Model model;
    par::parallelize(model, mesh["tp"], {.plan = {{"up", par::ColwiseParallel{}}, {"down", par::RowwiseParallel{}}}});
    CHECK_THROWS_WITH_AS(model(ls::ones({3, 8})), want.c_str(), ls::InvalidArgument);
    CHECK_THROWS_WITH_AS(model(ls::ones({3, 9})), "up: linear: x is (3, 9) f32 cpu, expected 8 columns",
                         ls::InvalidArgument);
  });
}

}  // namespace

TEST_CASE("a model that does not take sizes from the tensor, and one that leaves columns") {
  check_forward<Reshapes>(
      "reshape: (3, 4) f32 cpu has 12 elements, which do not fit into shape (3, 2, 4)\nafter up, activations have this "
      "rank's 4 columns; take sizes that "
      "a slice changes from the tensor, for example reshape({t.size(0), t.size(1), -1, head_dim})");
  check_forward<Leaves>(
      "parallelize: up is ColwiseParallel, and no RowwiseParallel layer of the same module has taken its columns; name "
      "one, "
      "or set .gather_output");
  check_forward<Drops>(
      "dropout: x is (1, 1) f32 cpu, and runs after up, whose outputs tensor parallelism has cut; expected the 4 "
      "columns of this "
      "rank: apply dropout to them, or before the layer or after the next RowwiseParallel one");
}

TEST_CASE("sequence parallelism: parameters without a style, and sequences that cannot be cut") {
  with_threads("local", 2, [](const Group& group) {
    const par::DeviceMesh mesh(group, {{"tp", 2}});
    par::ParallelPlan plan = kMlp;
    plan.emplace_back("head", par::VocabParallel{});
    Net net;
    CHECK_THROWS_WITH_AS(
        par::parallelize(net, mesh["tp"], {.sequence_parallel = true, .plan = plan}),
        "parallelize: tokens has parameters and no style; with .sequence_parallel name it SequenceParallel",
        ls::InvalidArgument);
    plan.emplace_back("tokens", par::SequenceParallel{});
    par::parallelize(net, mesh["tp"], {.sequence_parallel = true, .plan = plan});
    CHECK(net(ls::arange(4)).shape() == ls::Shape{4, 8});
    CHECK_THROWS_WITH_AS(net(ls::arange(3)),
                         "tokens: 3 positions cannot be cut into 2 pieces; use sequences of 4 positions",
                         ls::InvalidArgument);
  });
}

TEST_CASE("sequence parallelism: activations of another length") {
  with_threads("local", 2, [](const Group& group) {
    const par::DeviceMesh mesh(group, {{"tp", 2}});
    struct Mlps : nn::Module {
      Mlp& mlp = add<Mlp>("mlp");
      ls::Tensor forward(const ls::Tensor& x) const override { return mlp(x); }
    } model;
    par::parallelize(model, mesh["tp"], {.sequence_parallel = true, .plan = kMlp});
    CHECK_THROWS_WITH_AS(
        model(ls::ones({4, 8})),
        "mlp.up: no layer has divided the sequence yet: with .sequence_parallel a model begins with an "
        "Embedding that is VocabParallel or SequenceParallel; call the model itself",
        ls::InvalidArgument);
  });
}

TEST_CASE("functions that need whole parameters refuse slices") {
  Net net;
  par::parallelize(net, par::DeviceMesh(nullptr, {{"tp", 1}}), {.tensor_slices = 2, .plan = kMlp});
  const auto refused = [](const std::string& op, const std::string& fix) {
    return op + ": mlp.up.weight[0/2] is slice 0 of 2 of a parameter that tensor parallelism has cut; " + fix;
  };
  CHECK_THROWS_WITH_AS(
      nn::clip_grad_norm_(net.parameters(), 1.0),
      refused("clip_grad_norm_", "call run.clip_grad_norm_(max_norm), which counts all slices").c_str(),
      ls::InvalidArgument);
  CHECK_THROWS_WITH_AS(
      (void)net.state_dict(),
      refused("state_dict", "save with parallel::save_checkpoint, or read whole parameters inside run.gathered")
          .c_str(),
      ls::InvalidArgument);
  CHECK_THROWS_WITH_AS((void)nn::parameters_to_vector(net.parameters()),
                       refused("parameters_to_vector", "gather it first, with run.gathered").c_str(),
                       ls::InvalidArgument);
  CHECK_THROWS_WITH_AS((void)nn::parameter_hash(net), refused("parameter_hash", "call it inside run.gathered").c_str(),
                       ls::InvalidArgument);
  CHECK_THROWS_WITH_AS(ls::optim::LBFGS(net.parameters()),
                       refused("LBFGS", "the algorithm needs whole gradients; use another optimizer").c_str(),
                       ls::InvalidArgument);
  CHECK_THROWS_WITH_AS(par::parallelize(net, par::DeviceMesh(nullptr, {{"tp", 1}}), {.tensor_slices = 2, .plan = kMlp}),
                       refused("parallelize", "call parallelize once, with all styles").c_str(), ls::InvalidArgument);
}

TEST_CASE("an optimizer from before parallelize, which has the whole parameters, is refused") {
  const auto cut = [](Net& net) {
    par::parallelize(net, par::DeviceMesh(nullptr, {{"tp", 1}}), {.tensor_slices = 2, .plan = kMlp});
  };
  const std::string want =
      "optimizer: mlp.up.weight is a whole parameter that tensor parallelism has replaced by slices, of which the "
      "optimizer has none; construct the optimizer after parallelize, or with run.parameters() of the Parallel";
  Net net;
  const std::vector<nn::Parameter> whole = net.parameters();
  ls::optim::SGD sgd(whole, {.lr = 0.1});
  ls::optim::AdamW adam(whole, {.lr = 0.1});
  ls::optim::LBFGS lbfgs(whole);
  cut(net);
  const ls::Tensor ids = ls::arange(4);
  nn::cross_entropy(net(ids), ids).backward();
  for (ls::optim::Optimizer* const each :
       {static_cast<ls::optim::Optimizer*>(&sgd), static_cast<ls::optim::Optimizer*>(&adam)}) {
    CHECK_THROWS_WITH_AS(each->step(), want.c_str(), ls::InvalidArgument);
    CHECK_THROWS_WITH_AS(each->zero_grad(), want.c_str(), ls::InvalidArgument);
  }
  CHECK_THROWS_WITH_AS(lbfgs.zero_grad(), want.c_str(), ls::InvalidArgument);
  par::GradientAccumulation run(net);
  ls::optim::GradScaler scaler;
  CHECK_THROWS_WITH_AS(scaler.unscale_(sgd), want.c_str(), ls::InvalidArgument);
  CHECK_THROWS_WITH_AS(scaler.step(sgd), want.c_str(), ls::InvalidArgument);
  CHECK_THROWS_WITH_AS(scaler.unscale_(sgd, run), want.c_str(), ls::InvalidArgument);
  CHECK_THROWS_WITH_AS(scaler.step(sgd, run), want.c_str(), ls::InvalidArgument);
  CHECK_THROWS_WITH_AS(ls::optim::SGD(whole, {.lr = 0.1}), want.c_str(), ls::InvalidArgument);
  ls::optim::SGD of_slices(net.parameters(), {.lr = 0.1});
  of_slices.step();
  of_slices.zero_grad();

  Net tied;
  tied.head.weight = tied.tokens.weight;
  ls::optim::SGD of_tied(tied.parameters(), {.lr = 0.1});
  par::parallelize(tied, par::DeviceMesh(nullptr, {{"tp", 1}}),
                   {.tensor_slices = 2, .plan = {{"tokens", par::VocabParallel{}}, {"head", par::VocabParallel{}}}});
  CHECK_THROWS_WITH_AS(of_tied.step(), doctest::Contains("optimizer: tokens.weight is a whole parameter"),
                       ls::InvalidArgument);
}

TEST_CASE("parallelize of a model, or of a part of one, that a training mode holds") {
  with_threads("local", 2, [](const Group& group) {
    Net net;
    const std::string want =
        "parallelize: a training mode holds the model, and would keep the whole parameters; call parallelize before "
        "the "
        "training mode is constructed";
    const par::DeviceMesh mesh(group, {{"tp", 2}});
    const par::ParallelPlan of_mlp = {{"up", par::ColwiseParallel{}}, {"down", par::RowwiseParallel{}}};
    {
      const par::DistributedDataParallel run(net, group);
      CHECK_THROWS_WITH_AS(par::parallelize(net, mesh["tp"], {.plan = kMlp}), want.c_str(), ls::InvalidArgument);
      CHECK_THROWS_WITH_AS(par::parallelize(net.mlp, mesh["tp"], {.plan = of_mlp}), want.c_str(), ls::InvalidArgument);
    }
    {
      const par::GradientAccumulation run(net.mlp.up);
      CHECK_THROWS_WITH_AS(par::parallelize(net, mesh["tp"], {.plan = kMlp}), want.c_str(), ls::InvalidArgument);
    }
    par::parallelize(net, mesh["tp"], {.plan = kMlp});
  });
}

TEST_CASE("a training mode whose group has several slices of the model") {
  with_threads("local", 2, [](const Group& group) {
    const par::DeviceMesh mesh(group, {{"tp", 2}});
    Net net;
    par::parallelize(net, mesh["tp"], {.plan = kMlp});
    const std::string rest =
        ": the model is tensor-parallel over 2 ranks, which have different slices of its parameters, and several of "
        "them "
        "are in the mode's group, which would mix these; pass the group of another axis: mesh[\"dp\"].group()";
    CHECK_THROWS_WITH_AS(par::DistributedDataParallel(net, group), ("DistributedDataParallel" + rest).c_str(),
                         ls::InvalidArgument);
    CHECK_THROWS_WITH_AS(par::ShardedDataParallel(net, group), ("ShardedDataParallel" + rest).c_str(),
                         ls::InvalidArgument);
  });
}

TEST_CASE("ranks with slices that get different batches, or whose whole parameters drift") {
  with_threads("local", 4, [](const Group& group) {
    const par::DeviceMesh mesh(group, {{"dp", 2}, {"tp", 2}});
    Net net;
    par::parallelize(net, mesh["tp"], {.plan = kMlp});
    par::DistributedDataParallel run(net, mesh["dp"].group(), {.check_every = 1});
    const auto step = [&](const ls::Tensor& ids) {
      run.backward(ids, ids, [&](const ls::Tensor& x, const ls::Tensor& y) { return nn::cross_entropy(net(x), y); });
    };
    step(ls::arange(4));
    CHECK_THROWS_WITH_AS(
        step(ls::arange(4) + mesh["tp"].rank()),
        "DistributedDataParallel: rank 1 of the axis has other tensors than rank 0, but all ranks along it "
        "have slices of one model and must get the same batch; give a sampler the rank and size of the "
        "axis dp, and not of tp",
        ls::InvalidArgument);
  });
  with_threads("local", 4, [](const Group& group) {
    const par::DeviceMesh mesh(group, {{"dp", 2}, {"tp", 2}});
    Net net;
    par::parallelize(net, mesh["tp"], {.plan = kMlp});
    par::DistributedDataParallel run(net, mesh["dp"].group(), {.check_every = 1});
    if (mesh["tp"].rank() == 1) {  // one bit, on all replicas
      const ls::NoGradGuard no_grad;
      net.mlp.down.bias->fill_(std::nextafter(net.mlp.down.bias->max().item<float>(), 1.0F));
    } else {
      const ls::NoGradGuard no_grad;
      net.mlp.down.bias->fill_(net.mlp.down.bias->max().item<float>());
    }
    const ls::Tensor ids = ls::arange(4);
    CHECK_THROWS_WITH_AS(
        run.backward(ids, ids, [&](const ls::Tensor& x, const ls::Tensor& y) { return nn::cross_entropy(net(x), y); }),
        "DistributedDataParallel: replicas have diverged: mlp.down.bias of rank 1 is not rank 0's", ls::CommError);
  });
}

namespace {

// A parameter of the module itself, between the layers that are cut.
struct Scaled : nn::Module {
  nn::Linear& up = add<nn::Linear>("up", 8, 8);
  nn::Linear& down = add<nn::Linear>("down", 8, 8);
  nn::Parameter& scale = add_parameter("scale", ls::ones({1}));
  ls::Tensor forward(const ls::Tensor& x) const override { return down(up(x) * scale); }
};

template <class Run>
void check_partial_gradient(const char* mode, Run& run) {
  const ls::Tensor x = ls::arange(16).reshape({2, 8}).to(ls::kFloat32);
  const std::string want = fmt::format(
      "{}: the gradient of scale on rank 1 of the axis is not that on rank 0, though both have the whole parameter: it "
      "is "
      "used between a ColwiseParallel layer and the RowwiseParallel one, where each rank has a part of it; use it "
      "before or "
      "after them",
      mode);
  CHECK_THROWS_WITH_AS(
      run.backward(x, x, [&](const ls::Tensor& in, const ls::Tensor& y) { return nn::mse_loss(run.module()(in), y); }),
      doctest::Contains(want.c_str()), ls::InvalidArgument);
}

}  // namespace

TEST_CASE("a parameter of which each rank has a part of the gradient") {
  with_threads("local", 4, [](const Group& group) {
    const par::DeviceMesh mesh(group, {{"dp", 2}, {"tp", 2}});
    const par::ParallelPlan plan = {{"up", par::ColwiseParallel{}}, {"down", par::RowwiseParallel{}}};
    Scaled first, second, third;
    for (nn::Module* const each :
         {static_cast<nn::Module*>(&first), static_cast<nn::Module*>(&second), static_cast<nn::Module*>(&third)})
      par::parallelize(*each, mesh["tp"], {.plan = plan});
    par::GradientAccumulation accumulation(first);
    check_partial_gradient("GradientAccumulation", accumulation);
    par::DistributedDataParallel replicated(second, mesh["dp"].group());
    check_partial_gradient("DistributedDataParallel", replicated);
    par::ShardedDataParallel sharded(third, mesh["dp"].group());
    check_partial_gradient("ShardedDataParallel", sharded);
  });
}

TEST_CASE("a model all of whose parameters are cut") {
  struct Cut : nn::Module {
    nn::Linear& up = add<nn::Linear>("up", 8, 8);
    nn::Linear& down = add<nn::Linear>("down", 8, 8, nn::LinearOptions{.bias = false});
    ls::Tensor forward(const ls::Tensor& x) const override { return down(up(x)); }
  };
  with_threads("local", 2, [](const Group& group) {
    const par::DeviceMesh mesh(group, {{"dp", 1}, {"tp", 2}});
    Cut model;
    par::parallelize(model, mesh["tp"], {.plan = {{"up", par::ColwiseParallel{}}, {"down", par::RowwiseParallel{}}}});
    par::DistributedDataParallel run(model, mesh["dp"].group(), {.check_every = 1});
    const ls::Tensor x = ls::ones({2, 8});
    run.backward(x, x, [&](const ls::Tensor& in, const ls::Tensor& y) { return nn::mse_loss(model(in), y); });
    CHECK(run.clip_grad_norm_(1.0) > 0);
  });
}

TEST_CASE("calls that do not go through the module, and a plan that cuts nothing") {
  with_threads("local", 2, [](const Group& group) {
    const par::DeviceMesh mesh(group, {{"tp", 2}});
    Net net;
    CHECK_THROWS_WITH_AS(
        par::parallelize(net, mesh["tp"], {.plan = {{"mlp", par::Recompute{}}}}),
        "parallelize: 2 tensor slices, but .plan cuts no module; name linear layers ColwiseParallel and "
        "RowwiseParallel, or use 1 slice",
        ls::InvalidArgument);
    par::parallelize(net, mesh["tp"], {.plan = kMlp});
    CHECK_THROWS_WITH_AS(net.mlp.forward(ls::ones({2, 8})),
                         "mlp.up: ColwiseParallel: mlp.up runs outside of a call of the module that has it; call that "
                         "module, module(x), and not its forward by name",
                         ls::InvalidArgument);
  });
}

TEST_CASE("an exception on one rank ends the step of the others") { check_failing_slices("local"); }

TEST_CASE("a call that fails on one rank before its first layer ends those of the others") {
  check_early_errors("local");
}

TEST_CASE("a backward of the user's own that fails near the loss ends those of the others") {
  check_early_backwards("local");
}
