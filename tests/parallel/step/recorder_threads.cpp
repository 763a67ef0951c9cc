// Recorder: steps of every kind, options, directories, errors.
#include <fmt/format.h>

#include "tests/parallel/step/record_cases.h"
#include "tools/diff/text.h"

TEST_CASE("a backward that the user calls is recorded like a step") {
  record(kLayouts[0], "reference");
  for (const Layout& layout : {Layout{"ddp4", 4, 0}, Layout{"stage1", 4, 1}, Layout{"stage3", 4, 3}}) {
    CAPTURE(layout.name);
    record(layout, "own_" + layout.name, {}, {.backward_of_user = true});
    const diff::Comparison comparison = compare("reference", "own_" + layout.name);
    if (comparison.first) FAIL_CHECK(diff::describe(comparison.first->key));
    CHECK(comparison.only_a + comparison.only_b == 0);
  }
  // The sum of the replicas' gradients is not recorded, as nothing tells when it is complete.
  record({"dp"}, "own_dp", {}, {.backward_of_user = true});
  const diff::Comparison comparison = compare("reference", "own_dp");
  CHECK(comparison.first->key.what ==
        diff::What::kMicroBatchGradient);  // times 1/4, as the loss is that of all samples
  CHECK(comparison.only_a == kSteps * 14);
  CHECK(comparison.only_b == 0);
}

TEST_CASE("a Recorder records the steps and modules that its options name, and refuses a directory with a record") {
  std::filesystem::remove_all("some");
  Net model;
  par::GradientAccumulation run(model, {.micro_batches = 2});
  const auto step = [&] {
    run.backward(numbers({4, 3}), numbers({4, 2}),
                 [&](const ls::Tensor& x, const ls::Tensor& y) { return nn::MSELoss()(model(x), y); });
  };
  {
    const par::Recorder recorder(run, "some/folder",
                                 {.modules = {"blocks.*.fc", "head"}, .first_step = 1, .last_step = 2});
    for (int i = 0; i < 4; ++i) step();
  }
  step();
  std::set<std::pair<std::int64_t, std::string>> found;
  for (const auto& [key, lines] : diff::read_run("some/folder").tensors) found.insert({key.step, key.name});
  std::set<std::pair<std::int64_t, std::string>> want;
  for (const int number : {1, 2}) {
    for (const char* const name : {"", "blocks.0.fc", "blocks.0.fc.weight", "blocks.0.fc.bias", "blocks.1.fc",
                                   "blocks.1.fc.weight", "blocks.1.fc.bias", "head", "head.weight", "head.bias"})
      want.insert({number, name});
  }
  for (const char* const name :
       {"blocks.0.fc.weight", "blocks.0.fc.bias", "blocks.1.fc.weight", "blocks.1.fc.bias", "head.weight", "head.bias"})
    want.insert({0, name});  // the parameters before step 1
  CHECK(found == want);
  CHECK_THROWS_WITH_AS(par::Recorder(run, "some/folder"),
                       "Recorder: some/folder/rank0.jsonl exists already\nRemove the directory, or name another one",
                       ls::IoError);
  CHECK_THROWS_WITH_AS(par::Recorder(run, "some/folder/rank0.jsonl/below"),
                       "Recorder: some/folder/rank0.jsonl/below: mkdir: Not a directory", ls::IoError);
}

TEST_CASE("other initial values, a run that ends earlier and a wrong filter are named") {
  record(kLayouts[0], "reference");
  const diff::RunRecord reference = diff::read_run("reference");
  const auto other = [](std::int64_t first_step, std::int64_t last_step, bool changes) {
    std::filesystem::remove_all("other");
    ls::manual_seed(1);
    Net model;
    if (changes) flip(model.head.bias, 1, 1);
    par::GradientAccumulation run(model, {.micro_batches = kMicroBatches});
    int step = 0;
    const par::Recorder recorder(run, "other", {.first_step = first_step, .last_step = last_step});
    train(run, "", {}, step);
  };
  other(0, -1, true);
  const diff::Comparison changed = compare("reference", "other");
  CHECK(diff::describe(changed.first->key) == "the parameter head.bias before step 0");
  other(0, 0, false);
  const diff::Comparison shorter = compare("reference", "other");
  CHECK_FALSE(shorter.first);
  CHECK_FALSE(shorter.is_equal());
  CHECK(shorter.steps_only_a == kSteps - 1);
  CHECK(shorter.steps_only_b == 0);
  CHECK(diff::compare(reference, diff::read_run("other"), {.step = 0}).is_equal());
  const auto compared = [&](const diff::Filter& filter) { (void)diff::compare(reference, reference, filter); };
  CHECK_THROWS_WITH_AS(compared({.step = 7}), "--step 7: no run has a tensor of it; the steps of reference are -1 to 2",
                       ls::IoError);
  CHECK_THROWS_WITH_AS(compared({.modules = {"block.0"}}),
                       "--module block.0: no run has a module of this path; reference has for example norm",
                       ls::IoError);
}

TEST_CASE("the groups of a mesh record into one directory") {
  for (const std::string directory : {"mesh_a", "mesh_b"}) {
    std::filesystem::remove_all(directory);
    with_group("local", 4, [&](const Group& group) {
      ls::manual_seed(1);
      const par::DeviceMesh mesh(group, {{"dp", 2}, {"tp", 2}});
      Net model;
      for (nn::Module* const each : model.modules()) {  // the ranks of tp, as threads, would draw different numbers
        if (dynamic_cast<nn::Dropout*>(each)) each->eval();
      }
      par::DistributedDataParallel run(model, mesh["dp"].group(), {.micro_batches_per_rank = 2});
      int step = 0;
      train(run, directory, {}, step);
    });
  }
  CHECK(compare("mesh_a", "mesh_b").is_equal());
  for (int rank = 0; rank < 4; ++rank) CHECK(std::filesystem::exists("mesh_a/rank" + std::to_string(rank) + ".jsonl"));
}

TEST_CASE("LOCKSTEP_RECORD records every run, each in a directory of its own") {
  std::filesystem::remove_all("environment");
  setenv("LOCKSTEP_RECORD", "environment", 1);
  setenv("LOCKSTEP_RECORD_VALUES", "1", 1);
  record({"accumulate"}, "");
  record({"ddp2", 2, 0}, "");
  unsetenv("LOCKSTEP_RECORD");
  unsetenv("LOCKSTEP_RECORD_VALUES");
  CHECK_FALSE(compare("environment", "environment/2").first);
  CHECK(std::filesystem::exists("environment/2/rank1.jsonl"));
  CHECK(std::filesystem::file_size("environment/rank0.values") > 0);
}

TEST_CASE("a record that no Recorder has written is an error that names file and line") {
  const auto read = [](const std::string& text) {
    diff::RunRecord run{.directory = "a", .tensors = {}};
    return diff::add_rank(run, 0, std::as_bytes(std::span(text)), "a/rank0.jsonl");
  };
  const std::string first = "{\"format\":1,\"rank\":0,\"ranks\":[0,1]}\n",
                    second =
                        "{\"step\":0,\"what\":\"output\",\"micro_batch\":0,\"name\":\"in\",\"call\":0,"
                        "\"dtype\":\"f32\",\"shape\":[6],\"hash\":\"12\"";
  CHECK(read(first + second + "}\n" + second) == std::vector<int>{0, 1});
  const auto check_error = [&](const std::string& text, const std::string& want) {
    CHECK_THROWS_WITH_AS(read(text), want.c_str(), ls::IoError);
  };
  check_error("", "a/rank0.jsonl: the file has no complete line");
  check_error("{\"format\":2}\n", "a/rank0.jsonl, line 1: format 2, expected 1: another version of Lockstep wrote it");
  check_error(first + second + ",\"part\":[0,6,6,4,3]}\n", "a/rank0.jsonl, line 2: \"part\" is no part of the shape");
  check_error(first + "{\"step\":0,\"what\":\"outputs\"}\n", "a/rank0.jsonl, line 2: \"what\" is \"outputs\"");
  CHECK_THROWS_AS(read(first + "{\n"), ls::IoError);
}

TEST_CASE("ranks with parts of different tensors are named, and those that cut the same elements at other places") {
  const auto run_of = [](const std::vector<std::string>& tensors) {
    diff::RunRecord run{.directory = "a", .tensors = {}};
    int rank = 0;
    for (const std::string& tensor : tensors) {
      const std::string text =
          "{\"format\":1,\"rank\":0,\"ranks\":[0,1]}\n{\"step\":0,\"what\":\"output\",\"micro_batch\":0,\"name\":"
          "\"in\","
          "\"call\":0," +
          tensor + "}\n";
      diff::add_rank(run, rank++, std::as_bytes(std::span(text)), "a/rank.jsonl");
    }
    return run;
  };
  const auto check_named = [&](const std::vector<std::string>& tensors, const std::string& want) {
    const diff::RunRecord run = run_of(tensors);
    const diff::Comparison comparison = diff::compare(run, run, {});
    REQUIRE(comparison.first);
    CHECK(comparison.first->within == "a");
    CHECK(diff::as_text(comparison, "a", "a").find(want) != std::string::npos);
  };
  const std::string six = "\"hash\":\"12\",\"dtype\":\"f32\",\"shape\":[6]";
  check_named({six, "\"hash\":\"12\",\"dtype\":\"f32\",\"shape\":[7]"},
              "rank 0 and rank 1 have the shapes (6) and (7)");
  check_named({six, "\"hash\":\"12\",\"dtype\":\"bf16\",\"shape\":[6]"},
              "rank 0 and rank 1 have the dtypes f32 and bf16");
  // Elements [begin, begin + numel) of six in two rows of three, or of a slice of these: its first element, run and stride.
  const auto part = [](int begin, int numel, int hash, const std::string& slice = "0,6,6") {
    return fmt::format("\"hash\":\"{}\",\"dtype\":\"f32\",\"shape\":[2,3],\"part\":[{},{},{}]", hash, slice, begin,
                       numel);
  };
  const auto check_equal = [&](const std::vector<std::string>& tensors) {
    const diff::RunRecord run = run_of(tensors), whole = run_of({part(0, 6, 9)});
    CHECK(diff::compare(run, whole, {}).is_equal());
  };
  check_equal({part(0, 4, 5), part(4, 2, 4), part(0, 2, 2), part(2, 4, 7)});
  check_equal({part(0, 4, 5), part(0, 2, 2), part(2, 2, 3), part(4, 2, 4)});  // the last part continues both
  check_equal({part(1, 3, 2, "0,2,3"), part(0, 1, 1, "0,2,3"), part(0, 4, 3, "0,2,3"), part(0, 2, 6, "2,1,3")});
  check_named({part(0, 4, 5), part(4, 2, 4), part(0, 2, 2), part(2, 4, 8)},
              "ranks 0, 1 and ranks 2, 3 have different values");
  check_named({part(0, 4, 5), part(0, 2, 2), part(2, 2, 4), part(4, 2, 4)}, "have different values");
  const diff::RunRecord overlap = run_of({part(0, 6, 1), part(0, 4, 1, "0,2,3")});
  CHECK_THROWS_WITH_AS(
      (void)diff::compare(overlap, overlap, {}),
      "a: the output of in in micro-batch 0 of step 0: the ranks have parts with 10 elements, expected "
      "at most the 6 of the tensor; no Recorder writes slices that overlap: record the run again",
      ls::IoError);
}

TEST_CASE("recording changes no bits of gradients that several backwards add up in a shared parameter") {
  const auto gradients = [](bool records) {
    std::filesystem::remove_all("shared");
    Net model;
    par::GradientAccumulation run(model, {.micro_batches = 1});
    std::optional<par::Recorder> recorder;
    if (records) recorder.emplace(run, "shared");
    for (std::uint32_t i = 0; i < 3; ++i) {
      ls::manual_seed(1);
      const ls::Tensor y = run(numbers({8, 3}, {}, i)), again = run(numbers({8, 3}, {}, i + 10));
      (y + again * y).sum().backward();
    }
    std::vector<float> values;
    for (const nn::Parameter& p : model.parameters()) {
      const std::vector<float> each = p->grad().to_vector<float>();
      values.insert(values.end(), each.begin(), each.end());
    }
    return values;
  };
  CHECK(gradients(true) == gradients(false));
}

TEST_CASE("a run is equal to itself: ranks without samples, parts of a model, gradients inside the loss") {
  for (const int stage : {0, 2}) {
    CAPTURE(stage);
    std::filesystem::remove_all("uneven");
    with_group("local", 2, [&](const Group& group) {
      ls::manual_seed(1);
      Net model;
      const auto train_on = [&](auto& run) {
        const par::Recorder recorder(run, "uneven");
        ls::optim::SGD optimizer(run.parameters(), {.lr = 0.05});
        const auto loss_fn = [&](const ls::Tensor& x, const ls::Tensor& y) {
          return nn::MSELoss()(model.head(model.norm(model.in(x))), y);  // never model(x)
        };
        const int batches = group->rank() == 0 ? 4 : 2;
        run.join(
            [&] {
              for (int i = 0; i < batches; ++i) {
                optimizer.zero_grad();
                const std::int64_t rows = group->rank() == 1 && i == 1 ? 0 : 6;
                run.backward(numbers({6, 3}).narrow(0, 0, rows), numbers({6, 2}).narrow(0, 0, rows), loss_fn);
                optimizer.step();
              }
            },
            {.shadow_step = [&] { optimizer.step(); }});
      };
      if (stage == 0) {
        par::DistributedDataParallel run(model, group);
        train_on(run);
      } else {
        par::ShardedDataParallel run(model, group, {.stage = stage});
        train_on(run);
      }
    });
    const diff::Comparison comparison = compare("uneven", "uneven");
    if (comparison.first) FAIL_CHECK(diff::describe(comparison.first->key));
    CHECK(comparison.steps == 4);
  }
  std::filesystem::remove_all("penalty");
  Net model;
  par::GradientAccumulation run(model, {.micro_batches = 2});
  {
    const par::Recorder recorder(run, "penalty");
    for (int i = 0; i < 2; ++i) {
      run.backward(numbers({6, 3}), numbers({6, 2}), [&](const ls::Tensor& x, const ls::Tensor& y) {
        const ls::Tensor in = x.clone().requires_grad_(true), loss = nn::MSELoss()(model.head(model.in(in)), y);
        return loss + ls::autograd::grad({loss}, {in}, {.create_graph = true})[0].square().sum();
      });
    }
  }
  CHECK(compare("penalty", "penalty").is_equal());
}
