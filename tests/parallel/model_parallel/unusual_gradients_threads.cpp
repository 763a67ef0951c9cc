// Gradients that are infinite or NaN on one rank of a mesh: GradScaler leaves out the same steps on all ranks, with the
// bits of one process, and AnomalyGuard names the operation. Ranks are threads.
#include <memory>
#include <optional>
#include <utility>

#include "tests/support/groups.h"

namespace {

namespace par = ls::parallel;
namespace nn = ls::nn;

constexpr std::int64_t kSamples = 8;
constexpr int kMicroBatches = 4, kWidth = 8;

struct Block : nn::Module {
  nn::Linear& up = add<nn::Linear>("up", kWidth, 16);
  nn::Linear& down = add<nn::Linear>("down", 16, kWidth);
  ls::Tensor forward(const ls::Tensor& x) const override { return down(ls::relu(up(x))); }
};
// The gradient of x * x is NaN where x is 0, because that of sqrt is infinite there.
struct Root : nn::Module {
  ls::Tensor forward(const ls::Tensor& x) const override { return ls::sqrt(x * x); }
};
struct Model : nn::Module {
  nn::Linear& stem = add<nn::Linear>("stem", 4, kWidth, nn::LinearOptions{.bias = false});
  Root& root = add<Root>("root");
  nn::ModuleList& blocks = add<nn::ModuleList>("blocks");
  Model() {
    for (int i = 0; i < 2; ++i) blocks.push_back(Block());
  }
  ls::Tensor forward(const ls::Tensor& x) const override {
    ls::Tensor y = root(stem(x));
    for (nn::Module& block : blocks) y = block(y);
    return y;
  }
};

struct Mesh {
  int ranks;
  std::vector<par::MeshAxis> axes;
  int stage = 3;
};
const Mesh kMeshes[] = {{1, {{"dp", 1}}},
                        {2, {{"dp", 2}}},
                        {4, {{"fsdp", 4}}, 1},
                        {2, {{"fsdp", 2}}, 2},
                        {2, {{"fsdp", 2}}, 3},
                        {2, {{"tp", 2}}},
                        {2, {{"pp", 2}}},
                        {4, {{"fsdp", 2}, {"tp", 2}}},
                        {8, {{"pp", 2}, {"dp", 2}, {"tp", 2}}}};

// Calls body(run, model) on each rank of the mesh.
template <class Body>
void on_mesh(const Mesh& mesh, const Body& body) {
  const auto on_rank = [&](const Group& group) {
    ls::manual_seed(3);
    const par::DeviceMesh device_mesh(group, mesh.axes);
    Model model;
    par::Parallel run(model, device_mesh,
                      {.partition = {.micro_batches = kMicroBatches, .tensor_slices = 2},
                       .plan = {{"blocks.*.up", par::ColwiseParallel{}}, {"blocks.*.down", par::RowwiseParallel{}}},
                       .chain = {"stem", "root", "blocks.*"},
                       .stage = mesh.stage,
                       .units = {"blocks.*"}});
    body(run, model);
  };
  std::string text;
  for (const par::MeshAxis& axis : mesh.axes) text += axis.name + std::to_string(axis.size) + " ";
  CAPTURE(text);
  mesh.ranks == 1 ? on_rank(nullptr) : with_threads("local", mesh.ranks, on_rank);
}

// A step's samples of this rank. All of micro-batch 2 are multiplied by `factor`.
std::pair<ls::Tensor, ls::Tensor> batch(par::Parallel& run, int step, double factor) {
  const ls::Tensor x = numbers({kSamples, 4}, {}, static_cast<std::uint32_t>(step + 1)).clone();
  x.narrow(0, 4, 2).mul_(factor);
  const ls::Tensor y = numbers({kSamples, kWidth}, {}, static_cast<std::uint32_t>(step + 20));
  const std::int64_t first = 2 * run.first_micro_batch(), count = 2 * run.micro_batches();
  return {x.narrow(0, first, count), y.narrow(0, first, count)};
}

// Trains; returns the hash of the parameters. Step `unusual` has infinite gradients; the scaler leaves it out or, without
// one, the loop.
std::uint64_t train(par::Parallel& run, Model& model, int unusual, std::optional<ls::optim::GradScaler> scaler) {
  ls::optim::AdamW optimizer(run.parameters(), {.lr = 0.01});
  const nn::MSELoss criterion;
  for (int step = 0; step < 4; ++step) {
    if (!scaler && step == unusual) continue;
    const auto [x, y] = batch(run, step, step == unusual ? 1e38 : 1);
    optimizer.zero_grad();
    run.backward(x, y, [&](const ls::Tensor& in, const ls::Tensor& out) {
      const ls::Tensor loss = criterion(run.module()(in), out);
      return scaler ? scaler->scale(loss) : loss;
    });
    if (!scaler) {
      run.clip_grad_norm_(0.5);
      optimizer.step();
      continue;
    }
    scaler->unscale_(optimizer, run);
    run.clip_grad_norm_(0.5);
    CHECK(scaler->step(optimizer, run) == (step != unusual));
    scaler->update();
    CHECK(scaler->get_scale() == (step < unusual ? 1024 : 512));
  }
  std::uint64_t hash = 0;
  run.gathered([&] { hash = nn::parameter_hash(model); });
  return hash;
}

}  // namespace

TEST_CASE("GradScaler leaves out a step on all ranks of a mesh if a gradient of one is not finite") {
  for (const int unusual : {0, 1}) {
    std::uint64_t want = 0;
    on_mesh(kMeshes[0], [&](par::Parallel& run, Model& model) { want = train(run, model, unusual, std::nullopt); });
    for (const Mesh& mesh : kMeshes) {
      on_mesh(mesh, [&](par::Parallel& run, Model& model) {
        CHECK(train(run, model, unusual, ls::optim::GradScaler({.init_scale = 1024})) == want);
      });
    }
  }
}

TEST_CASE("GradScaler in DataParallel, with offloaded optimizers, with two optimizers, and for f16") {
  // Returns the hash of the parameters. The gradients of step 1 are not finite.
  const auto trained = [](auto& run, const Model& model, int rank, int ranks, ls::Device device = {}) {
    std::vector<nn::Parameter> first, rest;
    for (const nn::Parameter& each : run.parameters()) (first.empty() ? first : rest).push_back(each);
    ls::optim::AdamW one(first, {.lr = 0.01}), two(rest, {.lr = 0.02});
    ls::optim::GradScaler scaler({.init_scale = 1024});
    const nn::MSELoss criterion;
    for (int step = 0; step < 3; ++step) {
      const ls::Tensor x = numbers({kSamples, 4}, {}, static_cast<std::uint32_t>(step + 1)).clone(),
                       y = numbers({kSamples, kWidth}, {}, 20);
      if (step == 1) x.narrow(0, 4, 2).mul_(1e38);
      const std::int64_t rows = kSamples / ranks;
      one.zero_grad();
      two.zero_grad();
      {
        const ls::AutocastGuard autocast(ls::kFloat16);
        run.backward(x.narrow(0, rank * rows, rows).to(device), y.narrow(0, rank * rows, rows).to(device),
                     [&](const ls::Tensor& in, const ls::Tensor& out) {
                       return scaler.scale(criterion(run.module()(in), out));
                     });
      }
      scaler.unscale_(one, run);
      scaler.unscale_(two, run);
      run.clip_grad_norm_(0.5);
      CHECK(scaler.step(one, run) == (step != 1));
      CHECK(scaler.step(two, run) == (step != 1));
      scaler.update();
    }
    CHECK(scaler.get_scale() == 512);
    std::uint64_t hash = 0;
    run.gathered([&] { hash = nn::parameter_hash(model); });
    return hash;
  };
  const auto make = [] {
    ls::manual_seed(3);
    return std::make_unique<Model>();
  };
  const auto single = make();
  par::GradientAccumulation accumulation(*single, {.micro_batches = 2});
  const std::uint64_t want = trained(accumulation, *single, 0, 1);
  const auto replicated = make();
  par::DataParallel dp(*replicated, {"cpu:0", "cpu:1"});
  CHECK(trained(dp, *replicated, 0, 1) == want);
  for (const int stage : {0, 1, 2, 3}) {
    CAPTURE(stage);
    with_threads("local", 2, [&](const Group& group) {
      const auto model = make();
      if (stage == 0) {
        par::DistributedDataParallel run(*model, group);
        CHECK(trained(run, *model, group->rank(), 2) == want);
        return;
      }
      model->to("cpu:1");
      par::ShardedDataParallel run(*model, group, {.stage = stage, .offload_optimizer = true});
      CHECK(trained(run, *model, group->rank(), 2, "cpu:1") == want);
    });
  }
}

TEST_CASE("GradScaler has the same scale on ranks that have joined") {
  for (const int stage : {0, 3}) {
    CAPTURE(stage);
    std::uint64_t hashes[2];
    with_threads("local", 2, [&](const Group& group) {
      ls::manual_seed(3);
      Model model;
      const auto train = [&](auto& run) {
        ls::optim::SGD optimizer(run.parameters(), {.lr = 0.01});
        ls::optim::GradScaler scaler({.init_scale = 1024});
        const nn::MSELoss criterion;
        const auto step = [&] {
          scaler.step(optimizer, run);
          scaler.update();
          optimizer.zero_grad();
        };
        run.join(
            [&] {
              for (int batch = 0; batch < (group->rank() == 0 ? 4 : 1); ++batch) {
                const ls::Tensor x =
                    numbers({2, 4}, {}, static_cast<std::uint32_t>(batch + 1)) * (batch == 2 ? 1e38 : 1);
                run.backward(x, numbers({2, kWidth}), [&](const ls::Tensor& in, const ls::Tensor& out) {
                  return scaler.scale(criterion(run.module()(in), out));
                });
                step();
              }
            },
            {.shadow_step = step});
        CHECK(scaler.get_scale() == 512);
        run.gathered([&] { hashes[group->rank()] = nn::parameter_hash(model); });
      };
      if (stage == 0) {
        par::DistributedDataParallel run(model, group);
        train(run);
      } else {
        par::ShardedDataParallel run(model, group, {.stage = stage});
        train(run);
      }
    });
    CHECK(hashes[0] == hashes[1]);
  }
}

TEST_CASE("GradScaler refuses an optimizer of one rank's part without the training mode") {
  for (const Mesh& mesh : {kMeshes[2], kMeshes[4], kMeshes[5], kMeshes[6]}) {
    on_mesh(mesh, [&](par::Parallel& run, Model&) {
      ls::optim::SGD optimizer(run.parameters(), {.lr = 0.01});
      ls::optim::GradScaler scaler;
      const std::string text = error_of([&] { scaler.step(optimizer); });
      CHECK_MESSAGE(contains(text, "pass the training mode, too: scaler.step(optimizer, run)"), text);
    });
  }
}

TEST_CASE("AnomalyGuard names the operation and the module of a NaN on one rank, on all ranks of a mesh") {
  for (const Mesh& mesh : kMeshes) {
    on_mesh(mesh, [&](par::Parallel& run, Model&) {
      const nn::MSELoss criterion;
      const auto [x, y] = batch(run, 0, 0);
      const ls::AnomalyGuard guard;
      std::string text;  // beyond the usual length where it names the ranks that it came from
      try {
        run.backward(x, y,
                     [&](const ls::Tensor& in, const ls::Tensor& out) { return criterion(run.module()(in), out); });
      } catch (const ls::Error& error) {
        text = error.what();
      }
      CHECK_MESSAGE(contains(text, "mul (backward): the gradient of input 0 is NaN (16 of 16 elements"), text);
      CHECK_MESSAGE(contains(text, "in module "), text);
      CHECK_MESSAGE(contains(text, "Root"), text);
    });
  }
}
