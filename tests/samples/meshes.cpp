// char_gpt with sequence blocks on meshes of ranks: the bits of one partition, killed and resumed runs, --explain, the
// table of --strategies, and errors.
#include "tests/samples/mesh_runs.h"

TEST_CASE("char_gpt: all meshes with two blocks of each text end with the same bits") {
  for (const std::string attention : {"zigzag", "ulysses"}) {
    CAPTURE(attention);
    const std::string want = hash_of({"--strategy", "context", "-n", "2", "--attention", attention});
    CHECK(hash_of({"--strategy", "parallel", "--mesh", "dp=2,cp=2", "--attention", attention}) == want);
    CHECK(hash_of({"--mesh", "fsdp=2,cp=2", "--attention", attention, "--recompute"}) == want);
  }
  const std::string accumulated = hash_of({"--strategy", "accumulate"});
  CHECK(hash_of({"--mesh", "fsdp=2"}) == accumulated);
  CHECK(hash_of({"--mesh", "dp=4"}) == accumulated);
}

TEST_CASE("char_gpt: a run on one mesh goes on with another") {
  const auto train = [](const std::string& out, const std::string& epochs, const std::vector<std::string>& more) {
    std::vector<std::string> arguments = {"--epochs", epochs, "--save-every", "1", "--lr", "0.001"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    const Finished finished = run("char_gpt", small(out, arguments));
    CAPTURE(finished.output);
    return finished;
  };
  REQUIRE(train(fresh("mesh_first"), "1", {"--mesh", "cp=2,dp=2"}).code == 0);
  const Finished other = train("mesh_first", "1", {"--mesh", "cp=4", "--resume", "yes"});
  CHECK(other.code == 1);
  CHECK(contains(other.output, "blocks=2 attention=zigzag"));
  CHECK(train("mesh_first", "1", {"--mesh", "cp=2,fsdp=4", "--resume", "yes"}).code == 0);
  CHECK(read_file("mesh_first/model.safetensors").size() > 300);
}

TEST_CASE("char_gpt: a rank of a mesh is killed after a checkpoint; its mesh and other meshes end with the same bits") {
  // An epoch has two steps, the second with fewer texts.
  const auto words = [](const std::string& out, const std::vector<std::string>& more) {
    std::vector<std::string> arguments = {"--epochs", "20",      "--save-every", "4",      "--lr",
                                          "0.01",     "--batch", "256",          "--quiet"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    return small(out, arguments);
  };
  const std::vector<std::string> on_four = {"--strategy", "parallel", "--mesh", "dp=2,cp=2"};
  REQUIRE(run("char_gpt", words(fresh("mesh_whole"), on_four)).code == 0);
  Process killed("char_gpt", words(fresh("mesh_killed"), on_four));
  REQUIRE(eventually([] { return std::filesystem::exists("mesh_killed/checkpoint.safetensors"); }));
  const pid_t rank = find_rank(killed.pid(), 2);
  REQUIRE(rank > 0);
  kill(rank, SIGKILL);
  killed.require_end(128 + SIGKILL);
  CHECK_MESSAGE(contains(killed.output(), "First to fail: rank 2"), killed.output());
  REQUIRE(epochs_written("mesh_killed") < 20);
  for (const std::string mesh : {"dp=2,cp=2", "cp=2,dp=1", "cp=2,fsdp=2"}) {
    CAPTURE(mesh);
    const std::string out = fresh("mesh_goes_on");
    std::filesystem::copy("mesh_killed", out);
    const Finished finished = run("char_gpt", words(out, {"--mesh", mesh, "--resume", "yes"}));
    CAPTURE(finished.output);
    REQUIRE(finished.code == 0);
    CHECK(contains(finished.output, "Resuming from " + out + "/checkpoint.safetensors"));
    CHECK(result(out)["parameter_hash"] == result("mesh_whole")["parameter_hash"]);
    CHECK(metrics_without_times(out) == metrics_without_times("mesh_whole"));
    CHECK(result(out)["steps"] < result("mesh_whole")["steps"]);
  }
}

TEST_CASE("char_gpt: --explain says what the ranks of a mesh have, and its formulas give the bytes that were counted") {
  struct Case {
    std::string name, attention;
    std::vector<std::string> more;
    std::string phase;
  };
  const std::vector<Case> cases = {
      {"cp4", "zigzag", {"--strategy", "context", "-n", "4"}, "keys and values"},
      {"dp2_cp2_ring", "ring", {"--mesh", "dp=2,cp=2", "--recompute"}, "keys and values"},
      {"cp2_fsdp2_bf16", "zigzag", {"--mesh", "cp=2,fsdp=2", "--bf16"}, "keys and values"},
      {"dp2_cp2_ulysses", "ulysses", {"--mesh", "dp=2,cp=2", "--recompute"}, "activations"},
      {"cp4_ulysses_bf16", "ulysses", {"--mesh", "cp=4", "--bf16"}, "activations"}};
  for (const Case& each : cases) {
    // All windows in one step, so that the counters of the run are those of the step.
    std::vector<std::string> arguments = {"--epochs",     "1",        "--batch", "4096", "--attention",
                                          each.attention, "--explain"};
    arguments.insert(arguments.end(), each.more.begin(), each.more.end());
    const Finished finished = run("char_gpt", small(fresh("mesh_explained"), arguments));
    CAPTURE(finished.output);
    REQUIRE(finished.code == 0);
    const auto counted = result("mesh_explained");
    REQUIRE(counted["steps"] == 1);
    const std::int64_t activations = counted["bytes_in_steps"][each.phase],
                       gradients = counted["bytes_in_steps"]["activation gradients"];
    CHECK(activations > 0);
    const std::string start =
        each.phase == "activations" ? "\n  queries, keys, values and results: " : "\n  keys and values: ";
    CHECK(contains(finished.output, fmt::format("{0}{1} bytes, by the formulas {1}\n", start, activations)));
    CHECK(contains(finished.output, fmt::format("\n  their gradients: {0} bytes, by the formulas {0}\n", gradients)));
    expect_mesh(each.name, finished.output);
    CHECK(contains(finished.output, "\nrank 3: compute "));
    CHECK(!contains(finished.output, "cpu:"));
    CHECK(contains(finished.output, "for all_gather split_sequence #"));
  }
}

TEST_CASE("char_gpt: context has a row in the table of strategies, and its loss is that of whole texts") {
  const Finished finished =
      run("char_gpt", small(fresh("contexts"), {"--strategy", "compare", "--strategies", "accumulate,ddp,context",
                                                "--epochs", "1", "--mesh", "cp=2,dp=2", "--dropout", "0"}));
  CAPTURE(finished.output);
  REQUIRE(finished.code == 0);
  CHECK(contains(finished.output, "accumulate and ddp end with bitwise identical parameters."));
  CHECK(contains(finished.output, "context has 2 sequence blocks (zigzag), and so another order of sums"));
  const double whole = result("contexts/accumulate")["test_loss"], blocks = result("contexts/context")["test_loss"];
  CHECK(std::abs(whole - blocks) < 1e-4 * whole);
  CHECK(result("contexts/context")["bytes_in_steps"]["keys and values"].get<double>() > 0);
  CHECK(result("contexts/ddp")["bytes_in_steps"]["keys and values"] == 0);
}

TEST_CASE("char_gpt: errors of meshes name the option and the fix") {
  CHECK(contains(error_of({"--strategy", "parallel"}), "parallel needs a mesh of ranks; add --mesh"));
  CHECK(contains(error_of({"--strategy", "context", "--mesh", "dp=2"}),
                 "dp=2 has no axis cp with several ranks, which --strategy context needs"));
  CHECK(contains(error_of({"--mesh", "dp=2,cp"}), "axis cp has no size"));
  CHECK(contains(error_of({"--mesh", "cp=2", "-n", "4"}), "4 ranks, but --mesh cp=2 has 2; leave --nproc out"));
  CHECK(contains(error_of({"--mesh", "dp=3,cp=2"}), "--micro-batches 6"));
  CHECK(contains(error_of({"--strategy", "ddp", "--mesh", "dp=2"}), "--mesh"));
  CHECK(contains(error_of({"--strategy", "context", "--context", "18"}),
                 "18 positions cannot be cut into 8 equal parts"));
  CHECK(contains(error_of({"--mesh", "cp=8", "--attention", "ulysses"}),
                 "4 heads cannot be distributed evenly to 8 ranks"));
  CHECK(contains(run("logistic_regression", {"--strategy", "context"}).output,
                 "context, tensor, pipeline, model_parallel and parallel are for the model of char_gpt"));
  CHECK(!std::filesystem::exists("errors/result.json"));
}
