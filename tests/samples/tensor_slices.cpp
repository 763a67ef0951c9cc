// char_gpt with tensor slices on meshes of ranks: the bits of one partition, resumed runs, --explain, the table of
// --strategies, and errors.
#include "tests/samples/mesh_runs.h"

TEST_CASE("char_gpt: all meshes with equally many tensor slices end with the same bits") {
  const std::string two = hash_of({"--strategy", "tensor", "-n", "2"});
  CHECK(hash_of({"--mesh", "dp=2,tp=2"}) == two);
  CHECK(hash_of({"--mesh", "fsdp=2,tp=2", "--recompute"}) == two);
  CHECK(hash_of({"--mesh", "dp=1", "--tensor-slices", "2"}) == two);
  const std::string four = hash_of({"--strategy", "tensor", "-n", "2", "--tensor-slices", "4"});
  CHECK(hash_of({"--strategy", "tensor", "-n", "4"}) == four);
  CHECK(hash_of({"--mesh", "tp=2,dp=2", "--tensor-slices", "4"}) == four);
  const std::string whole = hash_of({"--strategy", "accumulate"});
  CHECK(two != whole);
  CHECK(four != whole);
  CHECK(four != two);
}

TEST_CASE("char_gpt: tensor slices and sequence blocks") {
  const std::string want = hash_of({"--mesh", "cp=2,tp=2"});
  CHECK(hash_of({"--mesh", "cp=2", "--tensor-slices", "2"}) == want);
  CHECK(hash_of({"--strategy", "context", "--mesh", "dp=2,cp=2,tp=2"}) == want);
}

TEST_CASE("char_gpt: with bf16, ranks do not change the bits") {
  const std::string want = hash_of({"--strategy", "tensor", "-n", "2", "--bf16"});
  CHECK(hash_of({"--mesh", "dp=2", "--tensor-slices", "2", "--bf16"}) == want);
}

TEST_CASE("char_gpt: a run with tensor slices continues on other meshes, which end with the same bits") {
  const auto train = [](const std::string& out, const std::string& epochs, const std::vector<std::string>& more) {
    std::vector<std::string> arguments = {"--epochs", epochs, "--save-every", "1", "--lr", "0.001"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    const Finished finished = run("char_gpt", small(out, arguments));
    CAPTURE(finished.output);
    return finished;
  };
  REQUIRE(train(fresh("slices_first"), "1", {"--strategy", "tensor", "-n", "2"}).code == 0);
  const Finished other =
      train("slices_first", "1", {"--strategy", "tensor", "-n", "2", "--tensor-slices", "4", "--resume", "yes"});
  CHECK(other.code == 1);
  CHECK(contains(other.output, " tensor-slices=2"));
  const std::string out = "slices_continued";
  std::string hash, model;
  for (const std::string mesh : {"tp=2", "fsdp=2,tp=2", "dp=2"}) {
    CAPTURE(mesh);
    std::filesystem::copy("slices_first", fresh(out));
    REQUIRE(train(out, "2", {"--mesh", mesh, "--tensor-slices", "2", "--resume", "yes"}).code == 0);
    if (hash.empty()) hash = result(out)["parameter_hash"], model = read_file(out + "/model.safetensors");
    CHECK(result(out)["parameter_hash"] == hash);
    CHECK(read_file(out + "/model.safetensors") == model);
  }
}

TEST_CASE(
    "char_gpt: --explain lists the tensor slices of each rank, and its formulas give the bytes that were counted") {
  const std::vector<std::pair<std::string, std::vector<std::string>>> cases = {
      {"tp4", {"--strategy", "tensor", "-n", "4"}},
      {"dp2_tp2", {"--mesh", "dp=2,tp=2", "--recompute"}},
      {"fsdp2_tp2_bf16", {"--mesh", "fsdp=2,tp=2", "--tensor-slices", "4", "--bf16"}}};
  for (const auto& [name, more] : cases) {
    // All windows in one step, so that the counters of the run are those of the step.
    std::vector<std::string> arguments = {"--epochs", "1", "--batch", "4096", "--explain"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    const Finished finished = run("char_gpt", small(fresh("slices_explained"), arguments));
    CAPTURE(finished.output);
    REQUIRE(finished.code == 0);
    const auto counted = result("slices_explained");
    REQUIRE(counted["steps"] == 1);
    const std::int64_t forward = counted["bytes_in_steps"]["activations"],
                       gradients = counted["bytes_in_steps"]["activation gradients"];
    CHECK(forward > 0);
    CHECK(contains(finished.output, fmt::format("\n  sums in forward: {0} bytes, by the formulas {0}\n", forward)));
    CHECK(contains(finished.output, fmt::format("\n  sums of gradients: {0} bytes, by the formulas {0}\n", gradients)));
    expect_mesh(name, finished.output);
  }
}

TEST_CASE("char_gpt: tensor has a row in the table of strategies, less memory, and the loss of whole matrices") {
  const Finished finished =
      run("char_gpt",
          small(fresh("slices_compared"), {"--strategy", "compare", "--strategies", "accumulate,ddp,tensor", "--epochs",
                                           "1", "-n", "2", "--tensor-slices", "4", "--dropout", "0"}));
  CAPTURE(finished.output);
  REQUIRE(finished.code == 0);
  CHECK(contains(finished.output, "accumulate and ddp end with bitwise identical parameters."));
  CHECK(contains(finished.output, "tensor has 4 tensor slices, and so another order of sums: test loss "));
  const auto of = [](const char* name) { return result(std::string("slices_compared/") + name); };
  const double whole = of("accumulate")["test_loss"], slices = of("tensor")["test_loss"];
  CHECK(std::abs(whole - slices) < 1e-4 * whole);
  CHECK(of("tensor")["bytes_in_steps"]["activations"] > 0);
  CHECK(of("ddp")["bytes_in_steps"]["activations"] == 0);
  const std::int64_t all = of("ddp")["memory"]["parameters"], own = of("tensor")["memory"]["parameters"];
  CHECK(own < all * 6 / 10);
  CHECK(own > all / 2);
}

TEST_CASE("char_gpt: errors of tensor slices name the option or the layer, and the fix") {
  CHECK(contains(error_of({"--strategy", "tensor", "--mesh", "dp=2"}),
                 "dp=2 has no axis tp with several ranks, which --strategy tensor needs"));
  CHECK(contains(error_of({"--strategy", "ddp", "--tensor-slices", "2"}),
                 "--tensor-slices: is for --strategy tensor, parallel, compare only"));
  CHECK(contains(error_of({"--strategy", "tensor", "-n", "2", "--tensor-slices", "3"}),
                 "3 tensor slices cannot be distributed evenly to 2 ranks of tp; use 3 ranks"));
  CHECK(contains(error_of({"--strategy", "tensor", "-n", "2", "--tensor-slices", "8"}),
                 "2 columns are not whole heads of 4; use 1, 2 or 4 slices"));
  CHECK(!std::filesystem::exists("errors/result.json"));
}
