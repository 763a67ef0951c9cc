// One file for every mesh: checkpoints of models that are cut, on ranks that are threads.
#include "tests/parallel/model_parallel/tensor_checkpoint.h"

using namespace tensor_training;

namespace {

const std::vector<Layout> kLayouts{{.tp = 1},
                                   {.tp = 2},
                                   {.tp = 4},
                                   {.tp = 2, .dp = 2},
                                   {.tp = 1, .dp = 4},
                                   {.tp = 4, .dp = 2},
                                   {.tp = 2, .dp = 2, .stage = 1},
                                   {.tp = 4, .dp = 2, .stage = 2},
                                   {.tp = 2, .dp = 2, .stage = 3},
                                   {.tp = 1, .dp = 2, .stage = 3},
                                   {.tp = 2, .dp = 4, .stage = 3}};
const std::vector<Layout> kFewLayouts =
    LOCKSTEP_SLOWDOWN > 1
        ? std::vector<Layout>{{.tp = 4}, {.tp = 2, .dp = 2, .stage = 3}}
        : std::vector<Layout>{{.tp = 1}, {.tp = 4}, {.tp = 2, .dp = 2}, {.tp = 2, .dp = 2, .stage = 3}};

}  // namespace

TEST_CASE("every mesh, mode and stage writes the same file, and continues from it with the same bits") {
  check_files(4, {}, LOCKSTEP_SLOWDOWN > 1 ? kFewLayouts : kLayouts);
}

TEST_CASE("files of models of every kind are the same on every mesh") {
  for (const ModelOptions& options :
       {ModelOptions{.fused = true, .gated = true, .frozen = true}, ModelOptions{.bias = false, .dropout = 0.2},
        ModelOptions{.fused = true, .deferred = true, .dropout = 0.2}})
    check_files(4, options, kFewLayouts);
  check_files(6, {.width = 24, .heads = 6, .fused = true}, {{.tp = 3}, {.tp = 6}, {.tp = 3, .dp = 2, .stage = 3}});
}

TEST_CASE("files of models that are cut along the vocabulary have the vocabulary's rows, and no others") {
  for (const ModelOptions& options : {ModelOptions{.vocabulary = true},
                                      ModelOptions{.bias = false, .vocabulary = true, .tied = true, .gathers = false}})
    check_files(4, options, kFewLayouts);  // slices of 5, 5, 5 and 4 rows
  check_files(2, {.fused = true, .deferred = true, .vocabulary = true, .tied = true},
              {{.tp = 2}, {.tp = 1}, {.tp = 2, .dp = 4, .stage = 3}, {.tp = 1, .dp = 2, .stage = 1}});  // 10 and 9
}

TEST_CASE("a tied parameter and a buffer that are not cut are saved once") {
  check_files<TiedModel>(4, {}, kFewLayouts);
  check_files<TiedModel>(2, {.fused = true, .frozen = true}, {{.tp = 2}, {.tp = 1, .dp = 2, .stage = 1}});
}

TEST_CASE("the file of an uncut model can be loaded on every mesh") {
  const ModelOptions options{.fused = true, .frozen = true};
  on_mesh<TiedModel>(nullptr, 1, {}, options,
                     [&](auto& run, TiedModel& model, int d) { save_twice(run, model, {}, options, d, "uncut"); });
  const std::string want = content_of_file("uncut");
  for (const Layout& layout : LOCKSTEP_SLOWDOWN > 1 ? kFewLayouts : kLayouts) {
    CAPTURE(layout.describe());
    on_mesh_of_threads<TiedModel>(4, layout, options, [&](auto& run, TiedModel&, int) {
      ls::optim::AdamW optimizer(groups_of(run), {.lr = 1e-2});
      ls::optim::CosineAnnealingLR schedule(optimizer, {.t_max = 10});
      ls::StateDict extra;
      const par::CheckpointParts parts = {
          .model = &run, .optimizer = &optimizer, .scheduler = &schedule, .extra = &extra};
      par::load_checkpoint("uncut", parts);
      par::save_checkpoint("cut", parts);
    });
    CHECK(content_of_file("cut") == want);
  }
}

TEST_CASE("errors of one rank are errors of all ranks of the mesh, and change nothing") {
  const Layout layout{.tp = 2, .dp = 2};
  on_mesh_of_threads(4, layout, {}, [&](auto& run, Model&, int) { par::save_checkpoint("good", {.model = &run}); });
  ls::Metadata metadata;
  const ls::StateDict good = ls::load("good", &metadata);
  const auto broken = [&](const std::string& path, const std::string& key, const ls::Tensor& value) {
    ls::StateDict dict;
    for (const auto& [name, tensor] : good) {
      if (name != key || value.defined()) dict.insert(name, name == key ? value : tensor);
    }
    ls::save(dict, path, metadata);
  };
  const std::string cut = "model.blocks.0.mlp.down.weight";
  broken("shape", cut, ls::zeros({32, 16}));
  broken("missing", cut, {});
  struct Case {
    std::string path, expected;
  };
  for (const Layout& each : {layout, Layout{.tp = 2, .dp = 2, .stage = 3}, Layout{.tp = 4}}) {
    for (const Case& c :
         std::vector<Case>{{"absent", "absent: cannot open"},
                           {"shape", "\"model.blocks.0.mlp.down.weight\": the model has (32, 64), the file (32, 16)"},
                           {"missing", "missing: \"blocks.0.mlp.down.weight\""}}) {
      on_mesh_of_threads(4, each, {}, [&](auto& run, Model&, int) {
        CAPTURE(each.describe());
        std::vector<ls::Tensor> before;
        for (const auto& p : run.parameters()) before.push_back(p.master().detach().clone());
        const std::string text = error_of<ls::Error>([&] { par::load_checkpoint(c.path, {.model = &run}); });
        CHECK_MESSAGE(contains(text, c.expected), text);
        std::size_t at = 0;
        for (const auto& p : run.parameters()) CHECK(same_bits(p.master().detach(), before[at++]));
        const std::string save = error_of<ls::IoError>([&] { par::save_checkpoint("no/folder", {.model = &run}); });
        CHECK_MESSAGE(contains(save, "no/folder: cannot create the temporary file"), save);
      });
    }
  }
}

TEST_CASE("slices and the mode need the axes of one mesh") {
  with_threads("local", 4, [](const Group& group) {
    const Group dp = group->split(group->rank() % 2, 0), tp = group->split(group->rank() / 2, 0);
    Model model({});
    par::parallelize(model, par::DeviceMesh(tp, {{"tp", 2}}), {.plan = plan_of({})});
    par::DistributedDataParallel run(model, dp);
    const std::string text = error_of([&] { par::save_checkpoint("other", {.model = &run}); });
    CHECK(
        text ==
        "checkpoint: 2 ranks share the slices of the model and 2 ranks train it together, but the mesh of parallelize "
        "has 2 ranks, expected 4; pass axes of one mesh: parallelize(model, mesh[\"tp\"], ...) and "
        "mesh[\"dp\"].group()");
  });
}

TEST_CASE("slices of a parameter in different groups of an optimizer are refused") {
  on_mesh_of_threads(4, {.tp = 2}, {}, [](auto& run, Model&, int) {
    std::vector<ls::optim::AdamWGroup> groups(2);
    for (const par::ShardedParameter& each : run.named_parameters())
      groups[each.parameter.slice() && each.parameter.slice()->index % 2 == 1 ? 1 : 0].params.push_back(each.parameter);
    ls::optim::AdamW optimizer(groups, {});
    const std::string text =
        error_of([&] { par::save_checkpoint("groups", {.model = &run, .optimizer = &optimizer}); });
    CHECK_MESSAGE(contains(text, "all slices of a parameter must be in the same group of the optimizer"), text);
  });
}
