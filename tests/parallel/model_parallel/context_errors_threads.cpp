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

TEST_CASE("attention that sequence blocks cannot compute") {
  check_call(2, Kind::kRing, {}, {.time = 4, .time_k = 6},
             "attention: context_parallel: q is (1, 2, 4, 4) f32 cpu, k is (1, 2, 6, 4) f32 cpu; expected as many "
             "queries as keys: cross-attention to another length is not supported");
  check_call(
      2, Kind::kRingZigzag, {}, {.time = 3, .time_k = 3},
      "attention: context_parallel: 3 positions on this rank are not two equal half blocks, as kRingZigzag needs; cut "
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
                         "scaled_dot_product_attention (backward): context_parallel: second derivatives are not "
                         "supported; call backward without create_graph",
                         ls::InvalidArgument);
  });
}

TEST_CASE("ranks whose sequence blocks differ in length") {
  for (const Kind kind : {Kind::kRing, Kind::kUlysses}) {
    with_threads("local", 2, [&](const Group& group) {
      Net net;
      par::context_parallel(net, par::DeviceMesh(group, {{"cp", 2}}), {.attention = kind});
      const ls::Tensor q = ls::randn({1, 2, 4 + 2 * group->rank(), 4});
      CHECK_THROWS_AS(net({q, q, q}), ls::CommError);
    });
  }
}

TEST_CASE("a mesh or a batch that cannot be cut") {
  with_threads("local", 4, [](const Group& group) {
    const par::DeviceMesh mesh(group, {{"dp", 2}, {"cp", 2}});
    Net net;
    CHECK_THROWS_WITH_AS(par::context_parallel(net, mesh),
                         "context_parallel: the mesh has the axes dp 2 x cp 2; pass the one whose ranks share each "
                         "sequence, for example mesh[\"cp\"]",
                         ls::InvalidArgument);
    CHECK_THROWS_WITH_AS(par::split_sequence({}, mesh),
                         "split_sequence: the mesh has the axes dp 2 x cp 2; pass the one whose ranks share each "
                         "sequence, for example mesh[\"cp\"]",
                         ls::InvalidArgument);
    const ls::Tensor good = ls::zeros({2, 8}), odd = ls::zeros({2, 10}), flat = ls::zeros({8});
    CHECK_THROWS_WITH_AS(
        par::split_sequence({good, odd}, mesh["cp"]),
        "split_sequence: tensor 1 is (2, 10) f32 cpu: 10 positions cannot be cut into 4 equal parts (2 for "
        "each rank); use sequences of 12 positions",
        ls::InvalidArgument);
    CHECK(par::split_sequence({odd}, mesh["cp"], Kind::kRing)[0].shape() == ls::Shape{2, 5});
    CHECK_THROWS_WITH_AS(par::split_sequence({flat}, mesh["cp"]),
                         "split_sequence: tensor 0 is (8) f32 cpu; expected (batch, time, ...): positions are "
                         "arange(time).expand({batch, time})",
                         ls::InvalidArgument);
    CHECK_THROWS_WITH_AS(par::split_sequence({ls::Tensor()}, mesh["cp"]),
                         "split_sequence: tensor 0 is undefined; expected (batch, time, ...): positions are "
                         "arange(time).expand({batch, time})",
                         ls::InvalidArgument);
  });
}

TEST_CASE("ranks that load other sequences") {
  with_threads("local", 4, [](const Group& group) {
    const par::DeviceMesh mesh(group, {{"cp", 4}});
    for (const bool same_shape : {true, false}) {
      const ls::Tensor ids = ls::full({2, same_shape || group->rank() != 2 ? 8 : 16}, group->rank() == 2 ? 1 : 0);
      CHECK_THROWS_WITH_AS(
          par::split_sequence({ids, ids}, mesh),
          "split_sequence: rank 2 of the axis has other tensors than rank 0, but all ranks along it must "
          "load the same sequences; give a sampler the rank and size of the axis dp, or those of "
          "run.first_micro_batch()",
          ls::InvalidArgument);
    }
    CHECK(par::split_sequence({ls::zeros({2, 8})}, mesh)[0].size(1) == 2);
  });
}

TEST_CASE("modes that would leave out the other ranks' part of the gradients") {
  const auto text = [](const std::string& mode) {
    return mode +
           ": the model is context-parallel over 2 ranks, and each has a part of the gradients; train it with "
           "DistributedDataParallel or ShardedDataParallel over a group with all of them: "
           "mesh.flatten({\"cp\", \"dp\"}).group(), or mesh[\"cp\"].group() if there is no other axis";
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

TEST_CASE("ranks and calls with different options") {
  with_threads("local", 2, [](const Group& group) {
    const par::DeviceMesh mesh(group, {{"cp", 2}});
    Net net;
    CHECK_THROWS_WITH_AS(
        par::context_parallel(net, mesh, {.attention = group->rank() == 0 ? Kind::kRing : Kind::kUlysses}),
        "context_parallel: ranks have different options: rank 0 has kRing, rank 1 has kUlysses", ls::CommError);
    CHECK_THROWS_AS(par::context_parallel(net, mesh, {.gather_keys = group->rank() == 0}), ls::CommError);
    par::context_parallel(net, mesh, {.attention = Kind::kRing});
    const ls::Tensor q = par::split_sequence({ls::ones({2, 8, 8})}, mesh)[0].reshape({1, 2, 4, 8});
    CHECK_THROWS_WITH_AS(net({q, q, q}),
                         "attention: context_parallel: the module's attention is kRing, but split_sequence has cut the "
                         "sequences for kRingZigzag; pass the same ContextAttention to both",
                         ls::InvalidArgument);
    par::split_sequence({ls::ones({2, 8})}, mesh, Kind::kUlysses);
    CHECK_NOTHROW(net({q, q, q}));
  });
}

TEST_CASE("a group with the ranks of a sequence in other places, and a model that is context-parallel too late") {
  with_threads("local", 4, [](const Group& group) {
    const par::DeviceMesh mesh(group, {{"dp", 2}, {"cp", 2}});
    Net net, other;
    par::GradientAccumulation alone(other);
    par::DistributedDataParallel of_dp(other, mesh["dp"].group());
    par::context_parallel(net, mesh["cp"]);
    par::context_parallel(other, mesh["cp"]);
    const auto text = [](const std::string& mode) {
      return mode +
             ": the ranks that share a sequence have the wrong places in the group, and the bits would depend on "
             "the mesh; name the axis cp first: mesh.flatten({\"cp\", \"dp\"}).group()";
    };
    CHECK_THROWS_WITH_AS(par::DistributedDataParallel(net, group), text("DistributedDataParallel").c_str(),
                         ls::InvalidArgument);
    CHECK_THROWS_WITH_AS(par::ShardedDataParallel(net, mesh.flatten({"dp", "cp"}).group()),
                         text("ShardedDataParallel").c_str(), ls::InvalidArgument);
    const ls::Tensor x = ls::ones({1, 4, 4});
    const auto loss = [&](const ls::Tensor& x, const ls::Tensor&) { return other(x).sum(); };
    CHECK_THROWS_WITH_AS(alone.backward(x, x, loss), doctest::Contains("GradientAccumulation: the model is context-"),
                         ls::InvalidArgument);
    CHECK_THROWS_WITH_AS(of_dp.backward(x, x, loss),
                         doctest::Contains("DistributedDataParallel: the model is context-"), ls::Error);
  });
}

TEST_CASE("layers whose forward takes masks are called by its name") {
  with_threads("local", 2, [](const Group& group) {
    ls::manual_seed(1);
    nn::TransformerEncoder whole(2, 8, 2, {.dim_feedforward = 8, .dropout = 0}),
        encoder(2, 8, 2, {.dim_feedforward = 8, .dropout = 0});
    encoder.load_state_dict(whole.state_dict());
    const par::DeviceMesh mesh(group, {{"cp", 2}});
    const ls::Tensor x = ls::randn({1, 8, 8}), want = whole.forward(x, {.is_causal = true});
    par::context_parallel(encoder, mesh);
    const ls::Tensor got = encoder.forward(par::split_sequence({x}, mesh)[0], {.is_causal = true});
    CHECK(ls::max(ls::abs(got - par::split_sequence({want}, mesh)[0])).item<double>() < 1e-5);
    par::context_parallel(encoder, par::DeviceMesh(nullptr, {{"cp", 1}}));  // removes it
    CHECK(same_bits(encoder.forward(x, {.is_causal = true}).detach(), want.detach()));
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
