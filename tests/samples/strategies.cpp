// The strategies of ShardedDataParallel in the samples: the bits, losses and files of gradient accumulation, names of
// DeepSpeed and Lightning, resumed runs, and the table of --strategies.
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <nlohmann/json.hpp>
#include <sstream>

#include "tests/samples/support.h"

namespace {

constexpr const char* kProgram = "logistic_regression";

nlohmann::json result(const std::string& out) { return nlohmann::json::parse(read_file(out + "/result.json")); }

void train(const std::string& out, std::vector<std::string> arguments) {
  arguments.insert(arguments.begin(), {"--epochs", "3", "--quiet", "--out", fresh(out)});
  const Finished finished = run(kProgram, arguments);
  CHECK(finished.output == "");
  REQUIRE(finished.code == 0);
}

std::vector<std::string> sharded(const std::string& strategy, const std::string& nproc = "2") {
  return {"--strategy", strategy, "--micro-batches", "4", "--nproc", nproc};
}

// Trains in one process, with accumulation, once for all tests.
void train_accumulated() {
  static bool is_done = false;
  if (!is_done) train("accumulated", {"--strategy", "accumulate", "--micro-batches", "4"});
  is_done = true;
}

void check_same_files(const std::string& one, const std::string& other) {
  for (const char* file : {"/model.safetensors", "/checkpoint.safetensors"}) {
    CAPTURE(file);
    CHECK(read_file(one + file).size() > 300);
    CHECK(read_file(one + file) == read_file(other + file));
  }
  CHECK(metrics_without_times(one) == metrics_without_times(other));
  CHECK(result(one)["parameter_hash"] == result(other)["parameter_hash"]);
}

std::vector<std::string> words(const std::string& line) {
  std::istringstream stream(line);
  return {std::istream_iterator<std::string>(stream), {}};
}

// Half a second at least, long enough to be interrupted.
std::vector<std::string> long_run(const std::string& out, std::vector<std::string> arguments) {
  const std::string epochs = std::to_string(3000 / LOCKSTEP_SLOWDOWN);
  arguments.insert(arguments.end(), {"--out", out, "--epochs", epochs, "--lr", "0.01"});
  return arguments;
}

}  // namespace

TEST_CASE("all strategies with the same micro-batches end with the same bits, losses and files") {
  train_accumulated();
  for (const char* strategy : {"ddp", "zero1", "zero2", "zero2_offload", "zero3", "zero3_offload"}) {
    for (const char* nproc : {"1", "2", "4"}) {
      CAPTURE(strategy);
      CAPTURE(nproc);
      train("sharded", sharded(strategy, nproc));
      check_same_files("sharded", "accumulated");
      CHECK(result("sharded")["mode"] == strategy);
    }
  }
}

TEST_CASE("the names of DeepSpeed, FSDP and Lightning, and --mode, select the same strategies") {
  const std::pair<const char*, const char*> all[] = {{"fsdp", "zero3"},
                                                     {"deepspeed_stage_1", "zero1"},
                                                     {"deepspeed_stage_2", "zero2"},
                                                     {"deepspeed_stage_2_offload", "zero2_offload"},
                                                     {"deepspeed_stage_3", "zero3"},
                                                     {"deepspeed_stage_3_offload", "zero3_offload"},
                                                     {"ddp_spawn", "ddp"},
                                                     {"ddp_sharded", "zero2"}};
  train_accumulated();
  for (const auto& each : all) {
    CAPTURE(each.first);
    train("named", {"--mode", each.first, "--micro-batches", "4", "--nproc", "2"});
    CHECK(result("named")["mode"] == each.second);
    CHECK(result("named")["parameter_hash"] == result("accumulated")["parameter_hash"]);
  }
  train("named", {"--strategy", "single_device"});
  CHECK(result("named")["mode"] == "single");
}

TEST_CASE("memory and bytes are those of the plan; an optimizer on the host copies from a virtual device only") {
  // 30 weights and a bias, f32: 128 + 64 bytes, padded to 256 for 2 ranks. Two micro-batches per rank need no further
  // set of gradients. Rank 0 trains the 30 weights.
  train("stage2", sharded("zero2"));
  const nlohmann::json stage2 = result("stage2");
  CHECK(stage2["memory"]["parameters"] == 256);
  CHECK(stage2["memory"]["gradients"] == 256);
  CHECK(stage2["memory"]["optimizer"] == 2 * 30 * 4);
  CHECK(stage2["memory"]["unit buffers"] == 0);
  CHECK(stage2["steps"] == 45);
  CHECK(stage2["bytes_in_steps"]["parameters"] == 45 * 256);  // the evaluations gather, too, and are not counted
  CHECK(stage2["bytes_in_steps"]["offload"] == 0);
  train("stage3", sharded("zero3"));
  CHECK(result("stage3")["memory"]["parameters"] == 128);
  CHECK(result("stage3")["memory"]["unit buffers"] == 256);
  CHECK(result("stage3")["bytes_in_steps"]["parameters"] == 45 * 2 * 256);
  train("host", sharded("zero2_offload"));
  CHECK(result("host")["bytes_in_steps"]["offload"] == 0);
  std::vector<std::string> arguments = sharded("zero2_offload");
  arguments.insert(arguments.end(), {"--device", "cpu:1"});
  train("virtual", arguments);
  CHECK(result("virtual")["bytes_in_steps"]["offload"] == 45 * 2 * (128 + 128));
  CHECK(result("virtual")["parameter_hash"] == result("stage2")["parameter_hash"]);
}

TEST_CASE("a sharded run that was stopped continues with another stage and other ranks, with the same bits") {
  REQUIRE(run(kProgram, long_run(fresh("whole"), {"--strategy", "accumulate", "--micro-batches", "4"})).code == 0);
  Process process(kProgram, long_run(fresh("stopped"), sharded("zero2")));
  REQUIRE(eventually([] { return epochs_written("stopped") >= 30; }));
  process.signal(SIGINT);
  process.require_end(130);
  CHECK(contains(process.output(), "Stopped in epoch "));
  for (const std::vector<std::string>& other :
       {sharded("zero3", "4"), sharded("zero1", "1"),
        std::vector<std::string>{"--strategy", "accumulate", "--micro-batches", "4"}}) {
    CAPTURE(other[1]);
    const std::string out = fresh("continued");
    std::filesystem::copy("stopped", out);
    const Finished finished = run(kProgram, long_run(out, other));
    CAPTURE(finished.output);
    REQUIRE(finished.code == 0);
    CHECK(contains(finished.output, "Resuming from continued/checkpoint.safetensors"));
    CHECK(read_file(out + "/model.safetensors") == read_file("whole/model.safetensors"));
    CHECK(metrics_without_times(out) == metrics_without_times("whole"));
  }
}

TEST_CASE("a checkpoint of every second epoch: after kill -9 of a rank the sharded run continues with the same bits") {
  REQUIRE(run(kProgram, long_run(fresh("whole3"), {"--strategy", "accumulate", "--micro-batches", "4"})).code == 0);
  std::vector<std::string> arguments = long_run(fresh("killed"), sharded("zero3"));
  arguments.insert(arguments.end(), {"--save-every", "2"});
  Process process(kProgram, arguments);
  REQUIRE(eventually([] { return epochs_written("killed") >= 30; }));
  const pid_t rank = find_rank(process.pid(), 1);
  REQUIRE(rank > 0);
  kill(rank, SIGKILL);
  process.require_end(128 + SIGKILL);
  const Finished finished = run(kProgram, arguments);
  CAPTURE(finished.output);
  REQUIRE(finished.code == 0);
  CHECK(contains(finished.output, "Resuming from killed/checkpoint.safetensors"));
  CHECK(read_file("killed/model.safetensors") == read_file("whole3/model.safetensors"));
}

TEST_CASE("char_gpt: clipping, groups without weight decay, dropout and recomputed blocks have the same bits") {
  std::ofstream("text.txt") << read_file(std::string(LOCKSTEP_SAMPLE_DATA_DIR) + "/shakespeare.txt").substr(0, 8000);
  const auto hash = [](std::vector<std::string> arguments) {
    const std::vector<std::string> small = {"--file",   "text.txt",   "--layers",        "2",  "--heads",    "2",
                                            "--width",  "16",         "--context",       "16", "--dropout",  "0.1",
                                            "--epochs", "1",          "--micro-batches", "4",  "--generate", "5",
                                            "--out",    fresh("gpt"), "--quiet"};
    arguments.insert(arguments.end(), small.begin(), small.end());
    const Finished finished = run("char_gpt", arguments);
    CAPTURE(finished.output);
    REQUIRE(finished.code == 0);
    return std::string(result("gpt")["parameter_hash"]);
  };
  const std::string accumulated = hash({"--strategy", "accumulate"});
  CHECK(hash({"--strategy", "zero1", "--nproc", "2"}) == accumulated);
  CHECK(hash({"--strategy", "zero2_offload", "--nproc", "4"}) == accumulated);
  CHECK(hash({"--strategy", "zero3", "--nproc", "2", "--recompute"}) == accumulated);
}

TEST_CASE("--strategies: a row for each, with memory, bytes and hash, in the order of the list") {
  const Finished finished =
      run(kProgram, {"--strategy", "compare", "--strategies", "accumulate,ddp,zero1,zero2,fsdp,zero3,single",
                     "--epochs", "2", "--micro-batches", "4", "--nproc", "2", "--out", fresh("costs")});
  CAPTURE(finished.output);
  REQUIRE(finished.code == 0);
  CHECK(contains(finished.output, "6 of 6: single ...\n"));  // fsdp and zero3 are one
  CHECK(
      contains(finished.output, "\naccumulate, ddp, zero1, zero2 and zero3 end with bitwise identical parameters.\n"));
  CHECK(lines(finished.output).back().starts_with("test accuracy 0."));
  std::vector<std::string> order;
  std::map<std::string, std::vector<std::string>> rows;
  for (const std::string& line : lines(finished.output)) {
    const std::vector<std::string> row = words(line);
    if (row.size() != 11 || row.back().size() != 16) continue;
    order.push_back(row[0]);
    rows[row[0]] = row;
  }
  CHECK(order == std::vector<std::string>{"accumulate", "ddp", "zero1", "zero2", "zero3", "single"});
  for (const std::string& name : order) {
    CAPTURE(name);
    const nlohmann::json own = result("costs/" + name);
    const std::vector<std::string>& row = rows.at(name);
    CHECK(row[2] == "-");  // no stages, so nothing is known of idle time
    CHECK(row[3] == std::to_string(own["memory"]["parameters"].get<int>()));
    CHECK(row[4] == std::to_string(own["memory"]["gradients"].get<int>()));
    CHECK(row[10] == own["parameter_hash"].get<std::string>());
    CHECK((row[10] == rows.at("accumulate")[10]) == (name != "single"));
  }
  // zero2: a step gathers 256 bytes of parameters, reduces as many of gradients, and sums loss and used parameters.
  const nlohmann::json bytes = result("costs/zero2")["bytes_in_steps"];
  CHECK(rows.at("zero2")[8] == std::to_string((bytes["parameters"].get<int>() + bytes["gradients"].get<int>()) / 30));
  CHECK(rows.at("accumulate")[8] == "0");
}

TEST_CASE("--strategies all: every strategy that a model without sequences can have") {
  const Finished finished = run(kProgram, {"--strategy", "compare", "--strategies", "all", "--epochs", "1", "--nproc",
                                           "2", "--quiet", "--out", fresh("everything")});
  CAPTURE(finished.output);
  REQUIRE(finished.code == 0);
  CHECK(contains(finished.output,
                 "\naccumulate, dp, ddp, zero1, zero2, zero2_offload, zero3 and zero3_offload end with "
                 "bitwise identical parameters.\n"));
  CHECK(!contains(finished.output, "pipeline"));
}

TEST_CASE("--explain and --report of a sharded run describe its ranks") {
  std::vector<std::string> arguments = sharded("zero2");
  arguments.insert(arguments.end(), {"--epochs", "1", "--explain", "--report", "z.html", "--out", fresh("explained")});
  const Finished finished = run(kProgram, arguments);
  CAPTURE(finished.output);
  REQUIRE(finished.code == 0);
  CHECK(contains(finished.output, "in mode zero2: "));
  CHECK(contains(finished.output, "\nrank 1: compute "));
  CHECK(read_file("z.html").size() > 10'000);
}

TEST_CASE("what has no effect on a sharded model is an error") {
  const auto error = [](std::vector<std::string> more) {
    std::vector<std::string> arguments = sharded("zero2");
    arguments.insert(arguments.end(), more.begin(), more.end());
    const Finished finished = run(kProgram, arguments);
    CHECK(finished.code == 2);
    return finished.output;
  };
  CHECK(
      contains(error({"--inject", "corrupt:rank=1,step=3"}), "--inject: corrupt is for --strategy ddp: zero2 has no"));
  CHECK(contains(error({"--comm-hook", "fp16"}), "--comm-hook: is for --strategy ddp, compare only"));
  CHECK(contains(error({"--order", "arrival"}), "--order: is for --strategy ddp, compare only"));
}
