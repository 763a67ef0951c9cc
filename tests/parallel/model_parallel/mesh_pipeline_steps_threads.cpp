// Steps of Parallel on meshes with the axis pp: uneven micro-batches, accumulation, buffers, requests to stop, exceptions,
// traffic, and the errors by text. Ranks are threads.
#include <atomic>

#include "tests/parallel/model_parallel/mesh_pipeline.h"

using namespace mesh_pipeline;

namespace {

constexpr par::Partition kFour{.micro_batches = 4};
const std::vector<Mesh> kMeshes = {{.pp = 2, .dp = 2},
                                   {.pp = 2, .dp = 2, .schedule = par::Schedule::kInterleaved, .chunks = 2},
                                   {.pp = 2, .fsdp = 2, .stage = 2},
                                   {.pp = 2, .fsdp = 2, .stage = 3},
                                   {.pp = 2, .fsdp = 2, .schedule = par::Schedule::kInterleaved, .chunks = 4},
                                   {.pp = 2, .fsdp = 2, .stage = 1, .schedule = par::Schedule::kZeroBubble},
                                   {.pp = 2, .fsdp = 2, .schedule = par::Schedule::kZeroBubble}};

void check_same(const Mesh& without_stages, const par::Partition& partition, const std::vector<Mesh>& meshes,
                const ModelOptions& options, const StepOptions& steps = {}) {
  const Outcome want = train(without_stages, partition, options, steps);
  for (const Mesh& mesh : meshes) {
    CAPTURE(mesh.describe());
    check_equal(train(mesh, partition, options, steps), want);
  }
}

// body(run, model, group) on every rank.
template <class Body>
void on_ranks(const Mesh& layout, const par::Partition& partition, const ModelOptions& options, const Body& body) {
  with_threads("local", layout.ranks(), [&](const Group& group) {
    ls::manual_seed(5);
    const par::DeviceMesh mesh(group, layout.axes());
    Model model(options);
    par::Parallel run(model, mesh, options_of(layout, partition, options));
    body(run, model, mesh);
  });
}

// The error of a run with these options; the same on all ranks.
void check_error(const Mesh& layout, const par::ParallelOptions& options, const std::string& want,
                 const ModelOptions& of_model = {}) {
  CAPTURE(want);
  std::atomic<int> thrown = 0;
  with_threads("local", layout.ranks(), [&](const Group& group) {
    const par::DeviceMesh mesh(group, layout.axes());
    Model model(of_model);
    try {
      par::Parallel run(model, mesh, options);
    } catch (const ls::InvalidArgument& error) {
      if (std::string(error.what()).find(want) != std::string::npos) return void(++thrown);
      CHECK(error.what() == want);
    }
  });
  CHECK(thrown == layout.ranks());
}

}  // namespace

TEST_CASE("micro-batches of different sizes, and ranks without samples") {
  for (const std::int64_t samples : {6, 3, 2})
    check_same({.dp = 2}, kFour, kMeshes, {.dropout = 0.1}, {.samples = samples});
}

TEST_CASE("gradients that accumulate without a reduction") {
  check_same({.dp = 2}, kFour, kMeshes, {.dropout = 0.1}, {.accumulates = true});
  check_same({}, kFour, {{.pp = 4}}, {.dropout = 0.1}, {.accumulates = true});
}

TEST_CASE("shared parameters, of which some ranks have no gradient, and which accumulate without a reduction") {
  for (const std::int64_t samples : {6, 3, 2})
    check_same({.dp = 2}, kFour, kMeshes, {.dropout = 0.1, .tied = true}, {.samples = samples});
  check_same({}, kFour, kMeshes, {.tied = true}, {.samples = 6});
  check_same({.dp = 2}, kFour, kMeshes, {.tied = true}, {.accumulates = true});
  check_same({.dp = 2}, kFour, kMeshes, {.tied = true}, {.samples = 2, .accumulates = true});
  check_same({}, kFour, {{.pp = 4}}, {.tied = true}, {.accumulates = true});
}

TEST_CASE("buffers are those of the first micro-batch of all ranks") {
  check_same({}, kFour, kMeshes, {.dropout = 0.1, .norm = true});
  check_same({}, kFour, {{.pp = 4}}, {.norm = true});
}

TEST_CASE("a model chunk whose parameters are all frozen") {
  check_same({.dp = 2}, kFour, kMeshes, {.ends_frozen = true});
}

TEST_CASE("a vocabulary in slices, whose loss is on the last stage") {
  for (const bool has_pieces : {false, true})
    check_same({}, {.micro_batches = 4, .tensor_slices = 4, .sequence_parallel = has_pieces},
               {{.pp = 2, .tp = 4}, {.pp = 2, .dp = 2, .tp = 2}, {.pp = 4, .fsdp = 2, .tp = 1}},
               {.dropout = 0.1, .gathers = false});
}

TEST_CASE("units of several chain modules, of parts of one, and of none") {
  for (const char* units : {"blocks", "blocks.*.inner.*", "*"}) {
    CAPTURE(units);
    check_same({}, kFour,
               {{.pp = 2, .fsdp = 2, .units = {units}},
                {.pp = 2, .fsdp = 2, .schedule = par::Schedule::kInterleaved, .chunks = 2, .units = {units}},
                {.pp = 2, .fsdp = 4, .stage = 2, .units = {units}}},
               {.dropout = 0.1});
  }
}

TEST_CASE("a request to stop on any rank reaches all ranks of the mesh in the next step") {
  const par::Partition partition{.micro_batches = 4, .tensor_slices = 2};
  for (const Mesh& layout : {Mesh{.pp = 2, .dp = 2, .tp = 2}, Mesh{.pp = 2, .tp = 2}, Mesh{.pp = 2, .fsdp = 2, .tp = 2},
                             Mesh{.dp = 2, .tp = 2}, Mesh{.pp = 4}}) {
    for (const int wanting : {0, 1, layout.ranks() - 1}) {
      CAPTURE(layout.describe());
      CAPTURE(wanting);
      on_ranks(layout, partition, {}, [&](par::Parallel& run, Model&, const par::DeviceMesh& mesh) {
        step_of(run, partition, 0);
        CHECK(!run.stop_requested());
        if (mesh.rank() == wanting) run.request_stop();
        step_of(run, partition, 1);
        CHECK(run.stop_requested());
      });
    }
  }
}

TEST_CASE("an exception on one rank is one on all ranks of the mesh") {
  const par::Partition partition{.micro_batches = 4, .tensor_slices = 2};
  for (const Mesh& layout : {Mesh{.pp = 2, .dp = 2, .tp = 2}, Mesh{.pp = 2, .fsdp = 2, .tp = 2}, Mesh{.pp = 4}}) {
    for (const int failing : {0, layout.ranks() - 1}) {
      CAPTURE(layout.describe());
      CAPTURE(failing);
      std::atomic<int> thrown = 0, own = 0;
      on_ranks(layout, partition, {}, [&](par::Parallel& run, Model& model, const par::DeviceMesh& mesh) {
        step_of(run, partition, 0);
        if (mesh.rank() == failing) {
          for (nn::Module* each : model.modules())
            each->register_forward_pre_hook(
                [](const nn::Module&, const std::vector<ls::Tensor>&) -> std::vector<ls::Tensor> {
                  throw ls::IoError("of a hook");
                });
        }
        try {
          step_of(run, partition, 1);
        } catch (const ls::Error& error) {
          ++thrown;
          own += dynamic_cast<const ls::IoError*>(&error) ? 1 : 0;
        }
      });
      CHECK(thrown == layout.ranks());
      CHECK(own == 1);
    }
  }
}

TEST_CASE("each rank has its stages, and the plan has the bytes of a step") {
  for (const Mesh& layout :
       {Mesh{.pp = 2, .fsdp = 2}, Mesh{.pp = 2, .fsdp = 2, .schedule = par::Schedule::kInterleaved, .chunks = 2},
        Mesh{.pp = 2, .fsdp = 2, .stage = 2}, Mesh{.pp = 2, .fsdp = 2, .schedule = par::Schedule::kZeroBubble},
        Mesh{.pp = 4, .fsdp = 2, .schedule = par::Schedule::kZeroBubble}, Mesh{.pp = 4, .dp = 2}}) {
    CAPTURE(layout.describe());
    std::vector<std::int64_t> of_stages(static_cast<std::size_t>(layout.pp));
    std::int64_t whole = 0;
    on_ranks(layout, kFour, {}, [&](par::Parallel& run, Model& model, const par::DeviceMesh& mesh) {
      std::int64_t numbers = 0;
      for (const par::ShardedParameter& each : run.named_parameters()) numbers += each.shape.numel();
      if (mesh["dp"].rank() == 0 && mesh["fsdp"].rank() == 0)
        of_stages[static_cast<std::size_t>(mesh["pp"].rank())] = numbers;
      CHECK(run.plan().find("stage 1") != std::string::npos);
      layout.fsdp > 1 ? check_gathered_bytes(run, kFour) : void(step_of(run, kFour, 0));
      const par::TrafficStats& all_axes = run.traffic();
      CHECK(all_axes.bytes(par::Phase::kActivations) + all_axes.bytes(par::Phase::kActivationGradients) > 0);
      std::int64_t of_model = 0;
      run.gathered([&] {
        for (const nn::Parameter& each : model.parameters()) of_model += each->numel();
      });
      if (mesh.rank() == 0) whole = of_model;
    });
    std::int64_t sum = 0;
    for (const std::int64_t each : of_stages) sum += each;
    CHECK(sum == whole);
    CHECK(of_stages[0] < whole);
  }
}

TEST_CASE("a mesh with stages that does not fit") {
  const auto with = [](const Mesh& mesh, const auto& change) {
    par::ParallelOptions options = options_of(mesh, kFour);
    change(options);
    return options;
  };
  const Mesh two{.pp = 2, .dp = 2};
  check_error(two, with(two, [](auto& options) { options.chain = {}; }),
              "Parallel: .chain is empty and Model is not a Sequential, whose children would be the chain; name the "
              "modules in the order in which they run");
  check_error(two,
              with(two,
                   [](auto& options) {
                     options.chain = {"embed", "blocks.*"};
                   }),
              "Parallel: head has parameters and is in no module of .chain, so no stage would run it");
  check_error(two, with(two, [](auto& options) { options.chunks_per_rank = 2; }),
              "1f1b has one chunk for each rank, got 2; use interleaved, or 1 chunk");
  check_error(two, with(two, [](auto& options) { options.split_before = {"blocks.9"}; }),
              "Parallel: .split_before: \"blocks.9\" is no module of the chain");
  check_error(two,
              with(two,
                   [](auto& options) {
                     options.chunks_per_rank = 5;
                     options.schedule = par::Schedule::kInterleaved;
                   }),
              "Parallel: 10 stages for a chain of 8 modules; use at most 8 ranks times chunks");
  const Mesh four{.pp = 4, .dp = 2};
  check_error(four,
              with(four,
                   [](auto& options) {
                     options.chunks_per_rank = 2;
                     options.schedule = par::Schedule::kInterleaved;
                   }),
              "2 micro-batches are no multiple of 4 ranks, which interleaved needs; use 4");
  check_error(two,
              with(two, [](auto& options) { options.table = par::ScheduleTable::make(par::Schedule::kGPipe, 2, 4); }),
              "Parallel: .table has 2 ranks and 4 micro-batches, but the axis has 2 ranks and .micro_batches_per_rank "
              "is 2");
  check_error(two, with(two, [](auto& options) { options.split_before = {"blocks.0"}; }),
              "Parallel: the stages of rank 0 along pp have no parameter that requires grad, but axes dp and cp have 2 "
              "and 1 ranks, which share gradients; choose other stages with .split_before",
              {.frozen = true});
}

TEST_CASE("the module's call outside of a step") {
  on_ranks({.pp = 2}, kFour, {}, [](par::Parallel& run, Model& model, const par::DeviceMesh&) {
    const std::vector<ls::Tensor> mine = own_batch(run, kFour, 0, kSamples);
    const std::string want =
        "Parallel: the module was called outside of a step, but this rank has some of its stages only; call "
        "run.backward or run.evaluate, or call it inside run.gathered";
    CHECK_THROWS_WITH_AS(model({mine[0], mine[1]}), want.c_str(), ls::InvalidArgument);
    run.gathered([&] { CHECK(model({mine[0], mine[1]}).size(-1) == kVocabulary); });
  });
}

namespace {

struct Wide : nn::Module {  // its layers are chain modules
  nn::Linear &up = add<nn::Linear>("up", 4, 8), &down = add<nn::Linear>("down", 8, 4),
             &last = add<nn::Linear>("last", 4, 4);
  ls::Tensor forward(const ls::Tensor& x) const override { return last(down(up(x))); }
};

}  // namespace

TEST_CASE("a stage must not end inside a region of tensor parallelism") {
  for (const int tp : {1, 2}) {
    CAPTURE(tp);
    with_threads("local", 2 * tp, [&](const Group& group) {
      const par::DeviceMesh mesh(group, {{"pp", 2}, {"tp", tp}});
      const ls::Tensor x = numbers({4, 4}, {}, 1);
      const auto step = [&](const std::string& second) {
        Wide model;
        par::Parallel run(model, mesh,
                          {.partition = {.tensor_slices = 2},
                           .plan = {{"up", par::ColwiseParallel{}}, {"down", par::RowwiseParallel{}}},
                           .chain = {"up", "down", "last"},
                           .split_before = {second}});
        run.backward(x, x, [&](const ls::Tensor& in, const ls::Tensor& y) { return ls::mean(run.module()(in) * y); });
      };
      CHECK_NOTHROW(step("last"));
    });
    std::atomic<int> named = 0;
    with_threads("local", 2 * tp, [&](const Group& group) {
      const par::DeviceMesh mesh(group, {{"pp", 2}, {"tp", tp}});
      Wide model;
      par::Parallel run(model, mesh,
                        {.partition = {.tensor_slices = 2},
                         .plan = {{"up", par::ColwiseParallel{}}, {"down", par::RowwiseParallel{}}},
                         .chain = {"up", "down", "last"},
                         .split_before = {"down"}});
      const ls::Tensor x = numbers({4, 4}, {}, 1);
      try {
        run.backward(x, x, [&](const ls::Tensor& in, const ls::Tensor& y) { return ls::mean(run.module()(in) * y); });
      } catch (const ls::Error& error) {
        const std::string want =
            "stage 0 ends between up (ColwiseParallel), which leaves the columns of this rank, and the layer that "
            "takes "
            "them; put both into one stage with .split_before";
        named += std::string(error.what()).find(want) != std::string::npos ? 1 : 0;
      }
    });
    CHECK(named >= tp);
  }
}
