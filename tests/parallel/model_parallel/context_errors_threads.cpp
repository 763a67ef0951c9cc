// Errors of context parallelism, by text, on all ranks.
#include "tests/parallel/model_parallel/failing_context.h"

namespace par = ls::parallel;
namespace nn = ls::nn;
using Kind = par::ContextAttention;

namespace {

struct Attention : nn::Module {
  ls::AttentionOptions options;
  ls::Tensor forward_inputs(const std::vector<ls::Tensor>& in) const override {
    return ls::scaled_dot_product_attention(in[0], in[1], in[2], options);
  }
};

struct Net : nn::Module {
  Attention& attention = add<Attention>("attention");
  nn::Linear& linear = add<nn::Linear>("linear", 4, 4);
  ls::Tensor forward_inputs(const std::vector<ls::Tensor>& in) const override { return attention(in); }
  ls::Tensor forward(const ls::Tensor& x) const override {
    const ls::Tensor y = linear(x).unsqueeze(1);
    return attention({y, y, y});
  }
};

struct Input {
  std::int64_t heads = 2, time = 4, time_k = 4;
};

void check_call(int ranks, Kind kind, const ls::AttentionOptions& options, const Input& in, const std::string& want) {
  with_threads("local", ranks, [&](const Group& group) {
    const par::DeviceMesh mesh(group, {{"cp", ranks}});
    Net net;
    net.attention.options = options;
    par::context_parallel(net, mesh, {.attention = kind});
    const ls::Tensor q = ls::randn({1, in.heads, in.time, 4}), k = ls::randn({1, in.heads, in.time_k, 4});
    CHECK_THROWS_WITH_AS(net({q, k, k}), want.c_str(), ls::InvalidArgument);
  });
}

const ls::Tensor kMask = ls::ones({4, 4}, {.dtype = ls::kBool});

}  // namespace

TEST_CASE("attention that blocks of a sequence cannot compute") {
  check_call(
      2, Kind::kRing, {}, {.time = 4, .time_k = 6},
      "attention: context_parallel: q is (1, 2, 4, 4) f32 cpu, k is (1, 2, 6, 4) f32 cpu; expected queries and keys of "
      "the same positions");
  check_call(
      2, Kind::kRingZigzag, {}, {.time = 3, .time_k = 3},
      "attention: context_parallel: 3 positions on this rank are not two equal chunks, as kRingZigzag needs; cut "
      "sequences with split_sequence");
  check_call(
      2, Kind::kRing, {.attn_mask = kMask}, {},
      "attention: context_parallel: attn_mask is (4, 4) bool cpu; expected (..., 4, 8): rows for the 4 positions of "
      "this rank, columns for those of all 2 ranks, in global order");
  check_call(2, Kind::kUlysses, {.attn_mask = ls::randn({4, 8}).requires_grad_()}, {},
             "attention: context_parallel: attn_mask requires grad, which is not supported; pass mask.detach()");
  check_call(2, Kind::kRing, {.attn_mask = ls::ones({4, 8}, {.dtype = ls::kBool}), .is_causal = true}, {},
             "attention: scaled_dot_product_attention: attn_mask is (4, 8) bool cpu and is_causal is true; pass one of "
             "them");
  check_call(
      2, Kind::kRing, {.attn_mask = ls::ones({3, 1, 4, 8}, {.dtype = ls::kBool})}, {},
      "attention: scaled_dot_product_attention: attn_mask is (3, 1, 4, 8) bool cpu, which does not broadcast to the "
      "scores' shape (1, 2, 4, 8)");
  check_call(4, Kind::kUlysses, {}, {},
             "attention: context_parallel: 2 heads cannot be distributed evenly to 4 ranks, as kUlysses needs; use a "
             "number of ranks that divides the heads, or kRingZigzag");
}

TEST_CASE("second derivatives below context_parallel") {
  with_threads("local", 2, [](const Group& group) {
    const par::DeviceMesh mesh(group, {{"cp", 2}});
    Net net;
    par::context_parallel(net, mesh, {.attention = Kind::kRing});
    const ls::Tensor q = ls::randn({1, 2, 4, 4}).requires_grad_();
    const ls::Tensor y = net({q, q, q}).sum();
    CHECK_THROWS_WITH_AS(ls::autograd::grad({y}, {q}, {.create_graph = true}),
                         "scaled_dot_product_attention (backward): second derivatives are not supported below "
                         "context_parallel",
                         ls::InvalidArgument);
  });
}

TEST_CASE("ranks whose blocks differ in length") {
  with_threads("local", 2, [](const Group& group) {
    const par::DeviceMesh mesh(group, {{"cp", 2}});
    for (const Kind kind : {Kind::kRing, Kind::kUlysses}) {
      Net net;
      par::context_parallel(net, mesh, {.attention = kind});
      const ls::Tensor q = ls::randn({1, 2, 4 + 2 * group->rank(), 4});
      CHECK_THROWS_AS(net({q, q, q}), ls::CommError);
    }
  });
}

TEST_CASE("a mesh or a batch that cannot be cut") {
  with_threads("local", 4, [](const Group& group) {
    const par::DeviceMesh mesh(group, {{"dp", 2}, {"cp", 2}});
    Net net;
    CHECK_THROWS_WITH_AS(par::context_parallel(net, mesh),
                         "context_parallel: the mesh has the axes dp 2 x cp 2; pass one of them: mesh[\"cp\"]",
                         ls::InvalidArgument);
    CHECK_THROWS_WITH_AS(par::split_sequence({}, mesh),
                         "split_sequence: the mesh has the axes dp 2 x cp 2; pass one of them: mesh[\"cp\"]",
                         ls::InvalidArgument);
    const ls::Tensor good = ls::zeros({2, 8}), odd = ls::zeros({2, 10}), flat = ls::zeros({8});
    CHECK_THROWS_WITH_AS(
        par::split_sequence({good, odd}, mesh["cp"]),
        "split_sequence: tensor 1 is (2, 10) f32 cpu: 10 positions cannot be cut into 4 equal chunks (2 for "
        "each rank); pad them to 12",
        ls::InvalidArgument);
    CHECK(par::split_sequence({odd}, mesh["cp"], Kind::kRing)[0].shape() == ls::Shape{2, 5});
    CHECK_THROWS_WITH_AS(par::split_sequence({flat}, mesh["cp"]),
                         "split_sequence: tensor 0 is (8) f32 cpu; expected (batch, time, ...)", ls::InvalidArgument);
    CHECK_THROWS_WITH_AS(par::split_sequence({ls::Tensor()}, mesh["cp"]),
                         "split_sequence: tensor 0 is undefined; expected (batch, time, ...)", ls::InvalidArgument);
  });
}

TEST_CASE("modes that would leave out the other ranks' part of the gradients") {
  const auto text = [](const std::string& mode) {
    return mode +
           ": the model is context-parallel over 2 ranks, and each has a part of the gradients; train it with "
           "DistributedDataParallel or ShardedDataParallel over a group with all of them: "
           "mesh.flatten({\"cp\", \"dp\"}).group()";
  };
  with_threads("local", 4, [&](const Group& group) {
    const par::DeviceMesh mesh(group, {{"dp", 2}, {"cp", 2}});
    Net net;
    par::context_parallel(net.attention, mesh["cp"]);
    CHECK_THROWS_WITH_AS(par::GradientAccumulation{net}, text("GradientAccumulation").c_str(), ls::InvalidArgument);
    CHECK_THROWS_WITH_AS(par::DataParallel(net, {"cpu", "cpu"}), text("DataParallel").c_str(), ls::InvalidArgument);
    CHECK_THROWS_WITH_AS(par::DistributedDataParallel(net, mesh["dp"].group()), text("DistributedDataParallel").c_str(),
                         ls::InvalidArgument);
    CHECK_THROWS_WITH_AS(par::ShardedDataParallel(net, mesh["dp"].group()), text("ShardedDataParallel").c_str(),
                         ls::InvalidArgument);
    CHECK_NOTHROW(par::DistributedDataParallel(net, mesh.flatten({"cp", "dp"}).group()));
  });
}

TEST_CASE("a module that is not called, whose attention has one block alone") {
  with_threads("local", 2, [](const Group& group) {
    OneAttention net;
    par::context_parallel(net, par::DeviceMesh(group, {{"cp", 2}}));
    par::DistributedDataParallel run(net, group);
    const ls::Tensor x = ls::randn({1, 4, 4});
    CHECK_THROWS_WITH_AS(
        run.backward(x, x, [&](const ls::Tensor& x, const ls::Tensor&) { return net.forward(x).sum(); }),
        "DistributedDataParallel: the loss function did not call the context-parallel module, so that attention had "
        "this rank's keys alone; call module(x) and not module.forward(x)",
        ls::InvalidArgument);
  });
}

TEST_CASE("an exception on one rank ends the step on all, which are threads") { check_failing_rank("local"); }
