// Weights of any origin in every mode: each rank reads its own parts. Ranks are threads.
#include "tests/parallel/model_parallel/mesh_pipeline.h"

using namespace mesh_pipeline;

namespace {

// A file as other programs write it: another prefix, and one matrix of each block transposed.
const nn::LoadWeightsOptions kForeign{.rename = {{"transformer", ""}}, .transpose = {"blocks.*.inner.up"}};

ls::StateDict write_foreign(const char* path, const ModelOptions& options) {
  ls::manual_seed(11);
  const Model model(options);
  ls::StateDict state = model.state_dict().clone(), foreign;
  for (const auto& [name, tensor] : state)
    foreign.insert("transformer." + name, contains(name, ".up.weight") ? tensor.t().contiguous() : tensor);
  ls::save(foreign, path);
  return state;
}

// Loads on one rank, compares, and trains.
Outcome load_and_train(const Group& group, const Mesh& layout, const par::Partition& partition,
                       const ModelOptions& options, const ls::StateDict& want) {
  ls::manual_seed(5);
  const par::DeviceMesh mesh(group, layout.axes());
  nn::DeferredInit deferred;
  Model model(options);
  deferred.end();
  par::Parallel run(model, mesh, options_of(layout, partition, options));
  const nn::LoadWeightsResult result = par::load_weights(run, "foreign.safetensors", kForeign);
  CHECK(result.missing.empty());
  CHECK(result.unexpected.empty());
  CHECK(result.other_shape.empty());
  run.gathered([&] {
    const ls::StateDict own = model.state_dict();
    for (const auto& each : want) CHECK_MESSAGE(same_bits(own.at(each.first), each.second), each.first);
  });
  Outcome outcome;
  train_steps(run, partition, options, {}, outcome);
  return outcome;
}

template <class Mode>
void check_mode(Mode& run, nn::Module& model, const ls::StateDict& want) {
  const nn::LoadWeightsResult result = par::load_weights(run, "sequential.safetensors");
  CHECK(result.missing.empty());
  run.gathered([&] {
    const ls::StateDict own = model.state_dict();
    for (const auto& each : want) CHECK_MESSAGE(same_bits(own.at(each.first), each.second), each.first);
  });
}

std::unique_ptr<nn::Sequential> sequential(std::uint64_t seed) {
  ls::manual_seed(seed);
  return std::make_unique<nn::Sequential>(nn::Linear(3, 5), nn::Tanh(), nn::Linear(5, 3));
}

}  // namespace

TEST_CASE("weights of a foreign file on meshes: every rank has its parts, and training goes on with the same bits") {
  const par::Partition partition{.micro_batches = 4, .tensor_slices = 2};
  for (const bool is_tied : {false, true}) {
    const ModelOptions options{.norm = !is_tied, .tied = is_tied};
    const ls::StateDict want = write_foreign("foreign.safetensors", options);
    const Outcome alone = load_and_train(nullptr, {}, partition, options, want);
    for (const Mesh& mesh :
         {Mesh{.dp = 2}, Mesh{.tp = 2}, Mesh{.fsdp = 2, .stage = 1}, Mesh{.fsdp = 4, .tp = 2, .stage = 2},
          Mesh{.fsdp = 4, .stage = 3}, Mesh{.pp = 2}, Mesh{.pp = 2, .fsdp = 2, .stage = 3}, Mesh{.pp = 4, .tp = 2},
          Mesh{.pp = 2, .dp = 2, .tp = 2}}) {
      CAPTURE(mesh.describe());
      with_threads("local", mesh.ranks(), [&](const Group& group) {
        const Outcome got = load_and_train(group, mesh, partition, options, want);
        if (mesh.pp == 1 || !is_tied) CHECK(got.numbers == alone.numbers);
      });
    }
  }
}

TEST_CASE("weights for the modes themselves") {
  const ls::StateDict want = sequential(1)->state_dict().clone();
  ls::save(want, "sequential.safetensors");
  const auto accumulated = sequential(2), replicated = sequential(2);
  par::GradientAccumulation accumulation(*accumulated);
  check_mode(accumulation, *accumulated, want);
  par::DataParallel replicas(*replicated, {"cpu:0", "cpu:1"});
  check_mode(replicas, *replicated, want);
  with_threads("local", 2, [&](const Group& group) {
    const auto model = sequential(2);
    par::DistributedDataParallel run(*model, group);
    check_mode(run, *model, want);
  });
  for (const int stage : {1, 2, 3}) {
    with_threads("local", 2, [&](const Group& group) {
      const auto model = sequential(2);
      par::ShardedDataParallel run(*model, group, {.stage = stage});
      check_mode(run, *model, want);
    });
  }
  with_threads("local", 2, [&](const Group& group) {
    const auto model = sequential(2);
    const par::DeviceMesh mesh(group, {{"pp", 2}});
    par::Pipeline run(*model, mesh["pp"]);
    check_mode(run, *model, want);
  });
}

TEST_CASE("an error of one rank is one of all, and nothing changes") {
  ls::StateDict state = sequential(1)->state_dict().clone(), lacking;
  ls::save(state, "complete.safetensors");
  for (const auto& [name, tensor] : state) {
    if (name != "2.bias") lacking.insert(name, tensor);
  }
  ls::save(lacking, "lacking.safetensors");
  with_threads("local", 2, [&](const Group& group) {
    const auto model = sequential(2);
    const par::DeviceMesh mesh(group, {{"pp", 2}});
    par::Pipeline run(*model, mesh["pp"], {.split_before = {"2"}});
    const std::string error = error_of([&] { par::load_weights(run, "lacking.safetensors"); });
    CHECK(error == std::string(group->rank() == 0 ? "rank 1: " : "") +
                       "load_weights: lacking.safetensors: 1 missing: \"2.bias\"\n.strict = false loads the rest");
    const std::string other = error_of<ls::IoError>(
        [&] { par::load_weights(run, group->rank() == 0 ? "complete.safetensors" : "lacking.safetensors"); });
    CHECK_MESSAGE(contains(other, "rank 1 reads another file than rank 0"), other);
    run.gathered([&] {
      const ls::StateDict own = model->state_dict(), before = sequential(2)->state_dict();
      for (const auto& each : before) CHECK_MESSAGE(same_bits(own.at(each.first), each.second), each.first);
    });
  });
}
