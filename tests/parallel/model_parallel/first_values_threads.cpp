// Ranks that have constructed a model with different seeds get rank 0's values from parallelize, Parallel and Pipeline.
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "lockstep/nn/deferred.h"
#include "tests/support/groups.h"

namespace par = ls::parallel;
namespace nn = ls::nn;

namespace {

struct Net : nn::Module {
  explicit Net(double scale_of_rank, double dropout = 0) : drop(add<nn::Dropout>("drop", dropout)) {
    scale->fill_(scale_of_rank);
  }
  nn::Linear& in = add<nn::Linear>("in", 4, 4);
  nn::Linear& up = add<nn::Linear>("up", 4, 8);
  nn::Linear& down = add<nn::Linear>("down", 8, 2);
  nn::Buffer& scale = add_buffer("scale", ls::ones({1}));
  nn::Dropout& drop;
  ls::Tensor forward(const ls::Tensor& x) const override { return down(ls::relu(up(drop(in(x))))) * scale; }
};

const par::ParallelPlan kPlan = {{"up", par::ColwiseParallel{}}, {"down", par::RowwiseParallel{}}};

// Returns rank 0's tensor.
ls::Tensor of_rank_0(const Group& group, const ls::Tensor& own) {
  const ls::Tensor copy = own.detach().clone();
  group->broadcast(copy)->wait();
  return copy;
}

ls::Tensor hash_of(const nn::Module& model) {
  return ls::full({1}, static_cast<double>(nn::parameter_hash(model) >> 32), {.dtype = ls::kFloat64});
}

ls::Tensor mean_loss(const nn::Module& model, const ls::Tensor& x, const ls::Tensor& y) {
  return nn::mse_loss(model(x), y);
}

}  // namespace

TEST_CASE("tensor parallelism: whole parameters, slices and buffers are those of rank 0") {
  for (const bool is_frozen : {false, true}) {
    with_threads("local", 2, [&](const Group& group) {
      ls::manual_seed(static_cast<std::uint64_t>(group->rank()));
      Net net(group->rank() + 1);
      if (is_frozen) net.freeze("in"), net.freeze("down.bias");
      const ls::Tensor x = ls::ones({2, 4}), y = ls::zeros({2, 2});
      const ls::Tensor want = of_rank_0(group, net(x)), hash = of_rank_0(group, hash_of(net));
      const par::DeviceMesh mesh(group, {{"dp", 1}, {"tp", 2}});
      par::Parallel run(net, mesh, {.partition = {.tensor_slices = 2}, .plan = kPlan});
      CHECK(ls::allclose(net(x).detach(), want));
      CHECK(ls::equal(net(x).detach(), of_rank_0(group, net(x))));
      run.gathered([&] { CHECK(ls::equal(hash_of(net), hash)); });
      ls::optim::SGD optimizer(run.parameters(), {.lr = 0.1});
      for (int step = 0; step < 2; ++step) {
        optimizer.zero_grad();
        run.backward(x, y, [&](const ls::Tensor& x, const ls::Tensor& y) { return mean_loss(net, x, y); });
        optimizer.step();
      }
      run.gathered([&] { CHECK(ls::equal(hash_of(net), of_rank_0(group, hash_of(net)))); });
    });
  }
}

namespace {

// A net that gets another layer and another buffer after it was constructed.
struct GrowingNet : Net {
  using Net::Net;
  void grow(double offset_of_rank) {
    extra = &add<nn::Linear>("extra", 2, 2);
    offset = &add_buffer("offset", ls::full({2}, offset_of_rank));
  }
  nn::Linear* extra = nullptr;
  nn::Buffer* offset = nullptr;
  ls::Tensor forward(const ls::Tensor& x) const override { return (*extra)(Net::forward(x)) + *offset; }
};

// Constructs a mode for a model that has grown after parallelize, and trains. The ranks have different seeds.
template <class Make>
void check_grown(const Group& group, const par::DeviceMesh& mesh, Make make) {
  ls::manual_seed(static_cast<std::uint64_t>(group->rank()));
  GrowingNet net(group->rank() + 1);
  par::parallelize(net, mesh["tp"], {.plan = kPlan});
  net.grow(group->rank() + 1);
  const ls::Tensor weight = of_rank_0(group, net.extra->weight), offset = of_rank_0(group, *net.offset);
  auto run = make(net);
  run->gathered([&] {
    CHECK(ls::equal(net.extra->weight->detach(), weight));
    CHECK(ls::equal(*net.offset, offset));
    CHECK(ls::equal(hash_of(net), of_rank_0(group, hash_of(net))));
  });
  ls::optim::SGD optimizer(run->parameters(), {.lr = 0.1});
  const ls::Tensor x = ls::ones({2, 4}), y = ls::zeros({2, 2});
  for (int step = 0; step < 2; ++step) {
    optimizer.zero_grad();
    run->backward(x, y, [&](const ls::Tensor& x, const ls::Tensor& y) { return mean_loss(net, x, y); });
    optimizer.step();
  }
  run->gathered([&] { CHECK(ls::equal(hash_of(net), of_rank_0(group, hash_of(net)))); });
}

}  // namespace

TEST_CASE("tensor parallelism: a layer that was added after parallelize has the values of rank 0") {
  with_threads("local", 2, [](const Group& group) {
    const par::DeviceMesh mesh(group, {{"tp", 2}});
    check_grown(group, mesh, [](nn::Module& net) { return std::make_unique<par::GradientAccumulation>(net); });
  });
  with_threads("local", 4, [](const Group& group) {
    const par::DeviceMesh mesh(group, {{"dp", 2}, {"tp", 2}});
    check_grown(group, mesh, [&](nn::Module& net) {
      return std::make_unique<par::DistributedDataParallel>(net, mesh["dp"].group(),
                                                            par::DistributedDataParallelOptions{.check_every = 1});
    });
    for (const int stage : {1, 3})
      check_grown(group, mesh, [&](nn::Module& net) {
        return std::make_unique<par::ShardedDataParallel>(net, mesh["dp"].group(),
                                                          par::ShardedDataParallelOptions{.stage = stage});
      });
  });
}

TEST_CASE("tensor parallelism: modules around the one that was parallelized have the values of rank 0") {
  with_threads("local", 2, [](const Group& group) {
    ls::manual_seed(static_cast<std::uint64_t>(group->rank()));
    struct Outer : nn::Module {
      Net& inner = add<Net>("inner", 1.0);
      nn::Linear& head = add<nn::Linear>("head", 2, 2);
      ls::Tensor forward(const ls::Tensor& x) const override { return head(inner(x)); }
    };
    Outer net;
    const ls::Tensor want = of_rank_0(group, net.head.weight);
    par::parallelize(net.inner, par::DeviceMesh(group, {{"tp", 2}}), {.plan = kPlan});
    const par::GradientAccumulation run(net);
    CHECK(ls::equal(net.head.weight->detach(), want));
  });
  with_threads("local", 2, [](const Group& group) {  // DataParallel has its own steps
    ls::manual_seed(static_cast<std::uint64_t>(group->rank()));
    GrowingNet net(1);
    par::parallelize(net, par::DeviceMesh(group, {{"tp", 2}}), {.plan = kPlan});
    net.grow(group->rank() + 1);
    const ls::Tensor want = of_rank_0(group, net.extra->weight);
    const par::DataParallel run(net, {"cpu:0"});
    CHECK(ls::equal(net.extra->weight->detach(), want));
    CHECK(ls::equal(*net.offset, ls::ones({2})));
  });
}

TEST_CASE("tensor parallelism: a mode sends no values that parallelize has shared") {
  with_threads("local", 2, [](const Group& group) {
    Net net(1);
    const par::DeviceMesh mesh(group, {{"tp", 2}});
    par::parallelize(net, mesh["tp"], {.plan = kPlan});
    const ls::parallel::TrafficStats& traffic = mesh["tp"].group()->traffic();
    const std::int64_t before = traffic.bytes();
    const par::GradientAccumulation run(net);
    CHECK(traffic.bytes() == before);
  });
}

TEST_CASE("tensor parallelism: different seeds with dropout are named by the first step") {
  with_threads("local", 2, [](const Group& group) {
    ls::manual_seed(static_cast<std::uint64_t>(group->rank()));
    Net net(1, 0.5);
    const par::DeviceMesh mesh(group, {{"tp", 2}});
    par::parallelize(net, mesh["tp"], {.plan = kPlan});
    par::GradientAccumulation run(net, {});
    const ls::Tensor x = ls::ones({16, 4}), y = ls::zeros({16, 2});
    CHECK_THROWS_WITH_AS(
        run.backward(x, y, [&](const ls::Tensor& x, const ls::Tensor& y) { return mean_loss(net, x, y); }),
        doctest::Contains(
            "on rank 1 of the axis is not that on rank 0: their seeds are 1 and 0, which give dropout other "
            "masks; call manual_seed with one seed on all ranks along it"),
        ls::InvalidArgument);
  });
}

TEST_CASE("tensor parallelism: ranks with other models, or other seeds of deferred parameters, are refused") {
  const auto error_with = [](const Group& group, nn::Module& net) {
    const par::DeviceMesh mesh(group, {{"tp", 2}});
    return error_of<ls::CommError>([&] { par::parallelize(net, mesh["tp"], {.plan = kPlan}); });
  };
  with_threads("local", 2, [&](const Group& group) {
    nn::DeferredInit deferred(static_cast<std::uint64_t>(group->rank()));
    Net net(1);
    deferred.end();
    CHECK(error_with(group, net) ==
          "parallelize: ranks have deferred parameters and different seeds: rank 0 has seed 0, rank 1 has seed 1");
  });
  with_threads("local", 2, [&](const Group& group) {
    nn::DeferredInit deferred(0);
    if (group->rank() == 0) deferred.end();
    Net net(1);
    deferred.end();
    CHECK(error_with(group, net) ==
          "parallelize: ranks have different models: rank 0 has in.weight (4, 4) f32 on device 0, rank 1 has in.weight "
          "(4, 4) f32 deferred on device 0");
  });
  with_threads("local", 2, [&](const Group& group) {
    Net net(1);
    if (group->rank() == 1) net.add<nn::Linear>("other", 2, 2);
    CHECK(contains(error_with(group, net), "parallelize: ranks have different models: rank 0 has scale (1) f32"));
  });
}

namespace {

struct Words : nn::Module {
  nn::Embedding& table = add<nn::Embedding>("table", 7, 4);
  ls::Tensor forward(const ls::Tensor& x) const override { return table(x); }
};

// The first and the last module share a parameter.
struct Tied : nn::Module {
  Tied() { head.weight = words.table.weight; }
  Words& words = add<Words>("words");
  nn::Linear& middle = add<nn::Linear>("middle", 4, 4);
  nn::Linear& head = add<nn::Linear>("head", 4, 7, nn::LinearOptions{.bias = false});
  ls::Tensor forward(const ls::Tensor& x) const override { return head(middle(words(x))); }
};

const par::PipelineOptions kStages = {.chain = {"words", "middle", "head"}, .micro_batches_per_rank = 2};

}  // namespace

TEST_CASE("pipelines: stages, and a parameter that two of them share, have the values of rank 0") {
  with_threads("local", 2, [](const Group& group) {
    ls::manual_seed(static_cast<std::uint64_t>(group->rank()));
    Tied net;
    const ls::Tensor hash = of_rank_0(group, hash_of(net));
    const par::DeviceMesh mesh(group, {{"pp", 2}});
    par::Pipeline run(net, mesh["pp"], kStages);
    const auto is_shared = [&] { return ls::equal(*net.head.weight, of_rank_0(group, net.head.weight)); };
    CHECK(is_shared());
    run.gathered([&] { CHECK(ls::equal(hash_of(net), hash)); });
    ls::optim::SGD optimizer(run.parameters(), {.lr = 0.1});
    const ls::Tensor x = ls::arange(4);
    for (int step = 0; step < 2; ++step) {
      optimizer.zero_grad();
      run.backward(x, x, [&](const ls::Tensor& x, const ls::Tensor& y) { return nn::cross_entropy(net(x), y); });
      optimizer.step();
    }
    CHECK(is_shared());
  });
}

TEST_CASE("pipelines: other seeds of deferred parameters are refused") {
  with_threads("local", 2, [](const Group& group) {
    nn::DeferredInit deferred(static_cast<std::uint64_t>(group->rank()));
    Tied net;
    deferred.end();
    const par::DeviceMesh mesh(group, {{"pp", 2}});
    CHECK(error_of<ls::CommError>([&] { par::Pipeline run(net, mesh["pp"], kStages); }) ==
          "Pipeline: ranks have deferred parameters and different seeds: rank 0 has seed 0, rank 1 has seed 1");
  });
}
