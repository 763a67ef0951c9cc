// Weights of any origin in every mode: each rank reads its own parts. Ranks are threads.
#include <fstream>

#include "tests/parallel/model_parallel/mesh_pipeline.h"

using namespace mesh_pipeline;

namespace {

// A file as other programs write it: another prefix, and one matrix of each block transposed.
const nn::LoadWeightsOptions kForeign{.rename = {{"transformer", ""}}, .transpose = {"blocks.*.inner.up"}};

ls::StateDict write_foreign(const char* path, const ModelOptions& options) {
  ls::manual_seed(11);
  const Model model(options);
  ls::StateDict state = model.state_dict().clone(), foreign, zeros;
  for (const auto& [name, tensor] : state)
    foreign.insert("transformer." + name, contains(name, ".up.weight") ? tensor.t().contiguous() : tensor);
  ls::save(foreign, path);
  for (const auto& entry : state) zeros.insert(entry.first, ls::zeros_like(entry.second));
  ls::save(zeros, "zeros.safetensors");
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
  par::load_checkpoint("zeros.safetensors", {.model = &run});
  run.gathered([&] {
    for (const auto& each : model.state_dict())
      CHECK_MESSAGE(ls::equal(each.second, ls::zeros_like(each.second)), each.first);
  });
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
void check_values(Mode& run, nn::Module& model, const ls::StateDict& want) {
  run.gathered([&] {
    const ls::StateDict own = model.state_dict();
    for (const auto& each : want) CHECK_MESSAGE(same_bits(own.at(each.first), each.second), each.first);
  });
}

// load_weights, and load_checkpoint with files of weights, an index and a folder.
template <class Mode>
void check_mode(Mode& run, nn::Module& model, const ls::StateDict& want, const ls::StateDict& other) {
  const nn::LoadWeightsResult result = par::load_weights(run, "sequential.safetensors");
  CHECK(result.missing.empty());
  check_values(run, model, want);
  ls::Metadata metadata;
  par::load_checkpoint("other/model.safetensors", {.model = &run, .metadata = &metadata});
  CHECK(metadata.at("source") == "elsewhere");
  check_values(run, model, other);
  par::load_checkpoint("sequential.safetensors.index.json", {.model = &run});
  check_values(run, model, want);
  par::load_checkpoint("other", {.model = &run});
  check_values(run, model, other);
  ls::optim::SGD optimizer(run.parameters(), {.lr = 0.1});
  const std::string error =
      error_of([&] { par::load_checkpoint("sequential.safetensors", {.model = &run, .optimizer = &optimizer}); });
  CHECK_MESSAGE(error ==
                    "load_checkpoint: sequential.safetensors is a file of weights, not a checkpoint with the state of "
                    "an optimizer, a scheduler or a caller; pass .model alone",
                error);
  check_values(run, model, other);
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

TEST_CASE("large matrices, which are read by pieces, transposed and in another dtype") {
  constexpr std::int64_t kIn = 601, kOut = 1802;  // one rank's third has several pieces, and begins within a row
  ls::manual_seed(1);
  const nn::Sequential model(nn::Linear(kIn, kOut), nn::Linear(kOut, kIn));
  const ls::StateDict want = model.state_dict();
  ls::StateDict wide;
  for (const auto& [name, tensor] : want)
    wide.insert(name, (tensor.dim() == 2 ? tensor.t().contiguous() : tensor).to(ls::kFloat64));
  ls::save(wide, "transposed.safetensors");
  const auto load = [&](auto& run, nn::Module& own) {
    par::load_weights(run, "transposed.safetensors", {.transpose = {"0", "1"}});
    check_values(run, own, want);
  };
  with_threads("local", 3, [&](const Group& group) {
    ls::manual_seed(2);
    nn::Sequential own(nn::Linear(kIn, kOut), nn::Linear(kOut, kIn));
    par::ShardedDataParallel run(own, group, {.stage = 3});
    load(run, own);
  });
  with_threads("local", 2, [&](const Group& group) {
    ls::manual_seed(2);
    nn::Sequential own(nn::Linear(kIn, kOut), nn::Linear(kOut, kIn));
    const par::DeviceMesh mesh(group, {{"tp", 2}});
    par::Parallel run(
        own, mesh,
        {.partition = {.tensor_slices = 2}, .plan = {{"0", par::ColwiseParallel()}, {"1", par::RowwiseParallel()}}});
    load(run, own);
  });
}

TEST_CASE("weights for the modes themselves") {
  const ls::StateDict want = sequential(1)->state_dict().clone();
  const ls::StateDict other = sequential(7)->state_dict().clone();
  ls::save(want, "sequential.safetensors");
  CHECK(std::system("mkdir -p other") == 0);
  ls::save(other, "other/model.safetensors", {{"source", "elsewhere"}});
  {
    std::ofstream index("sequential.safetensors.index.json");
    index << "{\"weight_map\": {";
    for (const auto& [name, tensor] : want)
      index << (name == want.begin()->first ? "" : ", ") << '"' << name << "\": \"sequential.safetensors\"";
    index << "}}";
  }
  const auto accumulated = sequential(2), replicated = sequential(2);
  par::GradientAccumulation accumulation(*accumulated);
  check_mode(accumulation, *accumulated, want, other);
  par::DataParallel replicas(*replicated, {"cpu:0", "cpu:1"});
  check_mode(replicas, *replicated, want, other);
  with_threads("local", 2, [&](const Group& group) {
    const auto model = sequential(2);
    par::DistributedDataParallel run(*model, group);
    check_mode(run, *model, want, other);
  });
  for (const int stage : {1, 2, 3}) {
    with_threads("local", 2, [&](const Group& group) {
      const auto model = sequential(2);
      par::ShardedDataParallel run(*model, group, {.stage = stage});
      check_mode(run, *model, want, other);
    });
  }
  with_threads("local", 2, [&](const Group& group) {
    const auto model = sequential(2);
    const par::DeviceMesh mesh(group, {{"pp", 2}});
    par::Pipeline run(*model, mesh["pp"]);
    check_mode(run, *model, want, other);
  });
  for (const char* axis : {"dp", "fsdp", "pp"}) {
    with_threads("local", 2, [&](const Group& group) {
      const auto model = sequential(2);
      const par::DeviceMesh mesh(group, {{axis, 2}});
      par::Parallel run(*model, mesh, {.partition = {.micro_batches = 2}});
      check_mode(run, *model, want, other);
    });
  }
}

TEST_CASE("a rank that is alone in save_checkpoint, load_checkpoint or load_weights is told so") {
  ls::save(sequential(2)->state_dict(), "alone.safetensors");
  for (const std::string call : {"save_checkpoint", "load_checkpoint", "load_weights"}) {
    with_threads("local", 2, [&](const Group& group) {
      const auto model = sequential(2);
      par::DistributedDataParallel run(*model, group);
      const std::string error = error_of<ls::CommError>([&] {
        if (group->rank() == 1)
          group->all_reduce(ls::ones({2}))->wait();
        else if (call == "save_checkpoint")
          par::save_checkpoint("alone.safetensors", {.model = &run});
        else if (call == "load_checkpoint")
          par::load_checkpoint("alone.safetensors", {.model = &run});
        else
          par::load_weights(&run, "alone.safetensors");
      });
      CHECK_MESSAGE(contains(error, "for \"" + call + "\""), error);
    });
  }
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
    CHECK(contains(error_of([&] { par::load_checkpoint("lacking.safetensors", {.model = &run}); }),
                   "load_checkpoint: lacking.safetensors: 1 missing: \"2.bias\"\nload_weights loads such files with "
                   "options: .rename, "));
    const std::string other = error_of<ls::IoError>(
        [&] { par::load_weights(run, group->rank() == 0 ? "complete.safetensors" : "lacking.safetensors"); });
    CHECK_MESSAGE(contains(other, "rank 1 reads another file than rank 0"), other);
    run.gathered([&] {
      const ls::StateDict own = model->state_dict(), before = sequential(2)->state_dict();
      for (const auto& each : before) CHECK_MESSAGE(same_bits(own.at(each.first), each.second), each.first);
    });
  });
}
