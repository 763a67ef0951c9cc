// char_gpt with blocks of texts on meshes of ranks: the bits of one partition, resumed runs, the table of --strategies,
// and errors.
#include <nlohmann/json.hpp>

#include "tests/samples/support.h"

namespace {

nlohmann::json result(const std::string& out) { return nlohmann::json::parse(read_file(out + "/result.json")); }

std::vector<std::string> small(const std::string& out, const std::vector<std::string>& more) {
  std::ofstream("text.txt") << read_file(std::string(LOCKSTEP_SAMPLE_DATA_DIR) + "/shakespeare.txt").substr(0, 8000);
  std::vector<std::string> arguments = {
      "--file",    "text.txt", "--layers", "2",  "--heads",         "4", "--width",    "16", "--context", "16",
      "--dropout", "0.1",      "--batch",  "16", "--micro-batches", "4", "--generate", "5",  "--out",     out};
  arguments.insert(arguments.end(), more.begin(), more.end());
  return arguments;
}

// Trains for one epoch.
std::string hash_of(std::vector<std::string> arguments) {
  arguments.insert(arguments.end(), {"--epochs", "1", "--quiet"});
  const Finished finished = run("char_gpt", small(fresh("mesh"), arguments));
  CAPTURE(finished.output);
  REQUIRE(finished.code == 0);
  return result("mesh")["parameter_hash"];
}

std::string error_of(const std::vector<std::string>& arguments) {
  const Finished finished = run("char_gpt", small("errors", arguments));
  CHECK(finished.code != 0);
  CHECK(lines(finished.output).size() <= 3);
  return finished.output;
}

}  // namespace

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
                 "context and parallel are for the sequences of char_gpt"));
  CHECK(!std::filesystem::exists("errors/result.json"));
}
