// The modes of the trainers: the same bits from micro-batches, DataParallel and DistributedDataParallel, and the table
// of compare.
#include "lockstep/base/device.h"
#include "lockstep/parallel/rendezvous/modules_internal.h"
#include "tests/samples/support.h"

#include <zlib.h>

#include <cstdlib>
#include <map>
#include <nlohmann/json.hpp>
#include <random>
#include <sstream>

namespace {

constexpr const char* kProgram = "logistic_regression";

std::vector<std::string> words(const std::string& line) {
  std::istringstream stream(line);
  return {std::istream_iterator<std::string>(stream), {}};
}

// Reads compare's table: the words of a mode's row, from steps/s to the hash.
std::map<std::string, std::vector<std::string>> table(const std::string& output) {
  std::map<std::string, std::vector<std::string>> rows;
  for (const std::string& line : lines(output)) {
    std::vector<std::string> row = words(line);
    if (row.size() != 11) continue;
    const std::string mode = row[0];
    row.erase(row.begin());
    if (mode == "single" || mode == "accumulate" || mode == "dp" || mode == "ddp") rows[mode] = row;
  }
  return rows;
}
enum Column {
  kSteps,
  kTrainLoss,
  kTestLoss,
  kAccuracy,
  kInputs,
  kParameters,
  kOutputs,
  kLossGradient,
  kGradients,
  kHash
};

double number(const std::string& text) { return std::strtod(text.c_str(), nullptr); }

nlohmann::json result(const std::string& out) { return nlohmann::json::parse(read_file(out + "/result.json")); }

std::string hash_of(const std::string& out, std::vector<std::string> arguments) {
  arguments.insert(arguments.begin(), {"--epochs", "3", "--quiet", "--out", fresh(out)});
  const Finished finished = run(kProgram, arguments);
  CHECK(finished.output == "");
  REQUIRE(finished.code == 0);
  return result(out)["parameter_hash"];
}

void check_error(const std::vector<std::string>& arguments, const std::vector<std::string>& parts) {
  const Finished finished = run(kProgram, arguments);
  CAPTURE(finished.output);
  CHECK(finished.code != 0);
  for (const std::string& part : parts) CHECK(contains(finished.output, part));
  CHECK(lines(finished.output).size() <= 3);
}

// Writes images of 28 x 28 random pixels, and labels from 0 to 9, as --data of the samples on Fashion-MNIST expects
// them.
void write_pictures(const std::string& name, int count) {
  const auto write = [](const std::string& path, const std::vector<int>& sizes, int limit) {
    std::string bytes = {'\0', '\0', '\x08', static_cast<char>(sizes.size())};  // IDX: bytes, with this many dimensions
    std::size_t elements = 1;
    for (const int size : sizes) {
      for (const int shift : {24, 16, 8, 0}) bytes += static_cast<char>(size >> shift);
      elements *= static_cast<std::size_t>(size);
    }
    std::minstd_rand random(1);
    for (std::size_t i = 0; i < elements; ++i) bytes += static_cast<char>(random() % static_cast<unsigned>(limit));
    const gzFile file = gzopen(path.c_str(), "wb1");
    REQUIRE(file != nullptr);
    REQUIRE(gzwrite(file, bytes.data(), static_cast<unsigned>(bytes.size())) == static_cast<int>(bytes.size()));
    REQUIRE(gzclose(file) == Z_OK);
  };
  write(name + "-images-idx3-ubyte.gz", {count, 28, 28}, 256);
  write(name + "-labels-idx1-ubyte.gz", {count}, 10);
}

}  // namespace

TEST_CASE("compare: accumulate, dp and ddp end with the same bits, single does not, and the least accuracy is last") {
  const Finished finished = run(kProgram, {"--mode", "compare", "--out", fresh("compare")});
  CAPTURE(finished.output);
  REQUIRE(finished.code == 0);
  CHECK(contains(finished.output, "\n1 of 4: ddp ...\n2 of 4: single ...\n3 of 4: accumulate ...\n4 of 4: dp ...\n"));
  const auto rows = table(finished.output);
  REQUIRE(rows.size() == 4);
  CHECK(rows.at("accumulate")[kHash].size() == 16);
  CHECK(rows.at("accumulate")[kHash] == rows.at("dp")[kHash]);
  CHECK(rows.at("accumulate")[kHash] == rows.at("ddp")[kHash]);
  CHECK(rows.at("accumulate")[kHash] != rows.at("single")[kHash]);
  CHECK(contains(finished.output, "accumulate, dp and ddp end with bitwise identical parameters. single differs"));

  double least = 1;
  for (const auto& entry : rows) {
    const std::string& mode = entry.first;
    const std::vector<std::string>& row = entry.second;
    CAPTURE(mode);
    CHECK(number(row[kSteps]) > 0);
    CHECK(number(row[kTrainLoss]) < 0.1);
    CHECK(number(row[kTestLoss]) < 0.1);
    least = std::min(least, number(row[kAccuracy]));
    CHECK(result("compare/" + mode)["parameter_hash"] == row[kHash]);
    CHECK(epochs_written("compare/" + mode) == 20);
  }
  CHECK(least >= 0.97);
  const std::string last = lines(finished.output).back();
  CHECK(last.starts_with("test accuracy 0."));
  CHECK(last.ends_with(" with every strategy"));
  CHECK(number(words(last)[2]) == least);
}

TEST_CASE("compare: the bytes of an epoch follow from rows, columns and parameters") {
  REQUIRE(run(kProgram, {"--mode", "compare", "--out", fresh("bytes"), "--epochs", "1"}).code == 0);
  // 456 rows in 15 steps; 30 columns, 31 parameters, one output; f32. The second device gets half of the rows.
  const nlohmann::json dp = result("bytes/dp");
  CHECK(dp["steps"] == 15);
  CHECK(dp["bytes_in_steps"]["inputs"] == 228 * 30 * 4);
  CHECK(dp["bytes_in_steps"]["parameters"] == 15 * 31 * 4);
  CHECK(dp["bytes_in_steps"]["outputs"] == 228 * 4);
  CHECK(dp["bytes_in_steps"]["loss gradient"] == 228 * 4);
  CHECK(dp["bytes_in_steps"]["gradients"] == 15 * 31 * 4);
  const nlohmann::json ddp = result("bytes/ddp");
  CHECK(ddp["steps"] == 15);
  CHECK(ddp["bytes_at_start"]["parameters"] == 31 * 4);
  CHECK(ddp["bytes_in_steps"]["parameters"] == 0);
  // 2 (n-1)/n of a bucket per rank; the bucket has the gradients, each aligned to 64 bytes, and a few numbers.
  const int gradients = ddp["bytes_in_steps"]["gradients"].get<int>() / 15;
  CHECK(gradients >= 2 * 31 * 4);
  CHECK(gradients <= 2 * 4 * 64);
  for (const char* mode : {"bytes/single", "bytes/accumulate"}) {
    const auto summary = result(mode);
    for (const auto& [phase, bytes] : summary["bytes_in_steps"].items()) CHECK(bytes == 0);
  }
}

TEST_CASE("compare: gloo, mpi and ucc give the bits of shm, and record the same bytes") {
  setenv("OMPI_ALLOW_RUN_AS_ROOT", "1", 1);  // in containers
  setenv("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1", 1);
  const auto compared = [](const std::string& backend) {
    const Finished finished = run(kProgram, {"--mode", "compare", "--epochs", "2", "--micro-batches", "4", "--nproc",
                                             "4", "--backend", backend, "--out", fresh("over_" + backend)});
    CAPTURE(finished.output);
    REQUIRE(finished.code == 0);
    CHECK(contains(finished.output, "accumulate, dp and ddp end with bitwise identical parameters."));
    auto rows = table(finished.output);
    REQUIRE(rows.size() == 4);
    for (auto& entry : rows) entry.second.erase(entry.second.begin() + kSteps);  // the only word that differs
    return rows;
  };
  const auto want = compared("shm");
  CHECK(result("over_shm/ddp")["bytes_in_steps"]["gradients"] > 0);
  for (const char* backend : {"gloo", "mpi", "ucc"}) {
    CAPTURE(backend);
    try {
      lockstep::parallel::backend_module(backend);
    } catch (const lockstep::NotBuilt&) {
      MESSAGE("SKIPPED: this build has no backend ", backend);
      continue;
    }
    const char* const set = getenv("ASAN_OPTIONS");
    const std::string options = set ? set : "";
    // MPI never frees some memory, which sanitizers report as a leak.
    if (std::string(backend) == "mpi") setenv("ASAN_OPTIONS", (options + ":detect_leaks=0").c_str(), 1);
    const auto have = compared(backend);
    setenv("ASAN_OPTIONS", options.c_str(), 1);
    CHECK((have == want));
  }
}

TEST_CASE("the bits depend on the number of micro-batches, not on mode, ranks, or where the loss is computed") {
  const std::string four = hash_of("accumulate4", {"--mode", "accumulate", "--micro-batches", "4"});
  CHECK(four != hash_of("accumulate2", {"--mode", "accumulate"}));
  CHECK(four == hash_of("dp4", {"--mode", "dp", "--micro-batches", "4"}));
  CHECK(four == hash_of("dp4r", {"--mode", "dp", "--micro-batches", "4", "--loss", "replica"}));
  for (const char* nproc : {"1", "2", "4"}) {
    CAPTURE(nproc);
    CHECK(four == hash_of("ddp4", {"--mode", "ddp", "--micro-batches", "4", "--nproc", nproc}));
  }
}

TEST_CASE("--order arrival is for ddp, and has no effect on the bits with two ranks") {
  const std::string two = hash_of("canonical", {"--mode", "ddp", "--order", "canonical"});
  CHECK(two == hash_of("arrival", {"--mode", "ddp", "--order", "arrival"}));
  CHECK(hash_of("arrival4", {"--mode", "ddp", "--micro-batches", "4", "--order", "arrival"}).size() == 16);
  check_error({"--mode", "dp", "--order", "arrival"}, {"--order", "ddp", "dp"});
}

TEST_CASE("--order own-first makes the replicas diverge, reports it, and is for ddp") {
  const auto run_with = [](const char* reduction) {
    return run(kProgram, {"--mode", "ddp", "--micro-batches", "4", "--epochs", "2", "--out", fresh(reduction),
                          "--order", reduction});
  };
  const Finished result = run_with("own-first");
  CHECK(result.code == 0);
  CHECK_MESSAGE(contains(result.output, "the replicas have diverged, with --order own-first"), result.output);
  std::map<std::string, std::string> hashes;
  for (const std::string& line : lines(result.output)) {
    const auto row = words(line);
    if (row.size() == 3 && row[0] == "rank") hashes[row[1]] = row[2];
  }
  CHECK(hashes.size() == 4);
  CHECK(hashes["0"] == hashes["1"]);  // a + b is b + a
  CHECK(hashes["0"] != hashes["2"]);
  CHECK(hashes["2"] != hashes["3"]);
  CHECK(contains(run_with("arrival").output, "the replicas are equal, with --order arrival"));
  CHECK(!contains(run_with("canonical").output, "the replicas"));
  check_error({"--mode", "accumulate", "--order", "own-first"}, {"--order", "ddp", "accumulate"});
}

TEST_CASE("--comm-hook is for ddp; the bits of bf16 differ from those of none, and are the same in every run") {
  const std::string exact = hash_of("exact", {"--mode", "ddp", "--comm-hook", "none"});
  const std::string bf16 = hash_of("bf16", {"--mode", "ddp", "--comm-hook", "bf16"});
  CHECK(bf16 != exact);
  CHECK(bf16 == hash_of("bf16_again", {"--mode", "ddp", "--comm-hook", "bf16"}));
  CHECK(exact != hash_of("fp16", {"--mode", "ddp", "--comm-hook", "fp16"}));
  // One row of weights is not worth factors: PowerSGD averages it uncompressed.
  CHECK(exact == hash_of("powersgd", {"--mode", "ddp", "--comm-hook", "powersgd"}));
  check_error({"--mode", "accumulate", "--comm-hook", "fp16"}, {"--comm-hook", "ddp", "accumulate"});
}

TEST_CASE("--nproc alone means ddp, and only rank 0 prints") {
  const Finished finished = run(kProgram, {"-n", "2", "--epochs", "2", "--out", fresh("nproc")});
  CAPTURE(finished.output);
  REQUIRE(finished.code == 0);
  const auto text = lines(finished.output);
  REQUIRE(text.size() > 2);
  CHECK(text[0].starts_with("epoch 1/2: step loss "));
  CHECK(text[1].starts_with("epoch 2/2: step loss "));
  CHECK(text.back().starts_with("test accuracy 0."));
  CHECK(epochs_written("nproc") == 2);
  CHECK(result("nproc")["mode"] == "ddp");
}

TEST_CASE("under lockstep-run the program is a rank") {
  if (!std::filesystem::exists(LOCKSTEP_RUN)) {
    MESSAGE("SKIPPED: lockstep-run is not built");
    return;
  }
  const std::string here = hash_of("plain", {"--mode", "ddp"});
  setenv("TERM", "xterm", 1);  // no progress bar, although stdout of a rank is a terminal
  const Finished finished =
      run(LOCKSTEP_RUN, {"--nproc-per-node", "2", std::string(LOCKSTEP_SAMPLES_DIR) + "/" + kProgram, "--epochs", "3",
                         "--out", fresh("launched")});
  CAPTURE(finished.output);
  REQUIRE(finished.code == 0);
  CHECK(result("launched")["parameter_hash"] == here);
  CHECK(finished.output.starts_with("[0] epoch 1/3: step loss "));
  CHECK(!contains(finished.output, "[1] "));
}

TEST_CASE("the error for options that exclude each other names both and the fix") {
  const std::string out = fresh("mode_errors");
  check_error({"--out", out, "--mode", "accumulate", "--batch", "33"}, {"--batch 33", "2 micro-batches", "32 or 34"});
  check_error({"--out", out, "--mode", "dp", "--micro-batches", "64"},
              {"--batch 32", "64 micro-batches", "use --batch 64"});
  check_error({"--out", out, "--mode", "ddp", "--nproc", "3"},
              {"--micro-batches 2", "3 ranks", "--nproc 2", "--micro-batches 3"});
  check_error({"--out", out, "--mode", "ddp", "--micro-batches", "4", "--nproc", "3"},
              {"--micro-batches 4", "3 ranks", "--nproc 2", "--micro-batches 6"});
  check_error({"--out", out, "--mode", "dp", "--backend", "gloo"}, {"--backend", "ddp", "dp"});
  check_error({"--out", out, "--mode", "ddp", "--backend", "mpi", "--order", "arrival"}, {"arrival", "shm", "mpi"});
  check_error({"--out", out, "--mode", "turbo"}, {"--strategy", "turbo", "single", "deepspeed_stage_2", "compare"});
  check_error({"--out", out, "--mode", "single", "--nproc", "2"}, {"--nproc", "ddp", "single"});
  check_error({"--out", out, "--mode", "compare", "--micro-batches", "3", "--batch", "33", "--nproc", "1"},
              {"3 micro-batches on 1"});
  check_error({"--out", out, "--mode", "compare", "--micro-batches", "3", "--batch", "33"},
              {"3 micro-batches", "--loss replica"});
  CHECK(!std::filesystem::exists(out));
}

TEST_CASE("a flag that has no effect in the chosen mode is an error; in the others it is accepted") {
  struct Flag {
    std::vector<std::string> words;
    std::string modes;  // that accept the flag
  };
  const Flag flags[] = {{{"--save", "here.safetensors"}, "single accumulate dp ddp zero2"},
                        {{"--micro-batches", "2"}, "accumulate dp ddp zero2 compare"},
                        {{"--nproc", "2"}, "ddp zero2 compare"},
                        {{"--loss", "outside"}, "dp compare"},
                        {{"--backend", "shm"}, "ddp zero2 compare"},
                        {{"--order", "canonical"}, "ddp compare"},
                        {{"--comm-hook", "none"}, "ddp compare"},
                        {{"--timeout", "60"}, "ddp zero2 compare"},
                        {{"--inject", "kill:rank=1,step=1"}, "ddp zero2 compare"},
                        {{"--strategies", "single,ddp"}, "compare"},
                        {{"--cuda-graph"}, "single"}};
  const std::string out = fresh("flags");
  for (const Flag& flag : flags) {
    for (const std::string mode : {"single", "accumulate", "dp", "ddp", "zero2", "compare"}) {
      std::vector<std::string> arguments = {"--mode", mode, "--out", out, "--file", "nowhere.csv"};
      arguments.insert(arguments.end(), flag.words.begin(), flag.words.end());
      const Finished finished = run(kProgram, arguments);
      CAPTURE(mode);
      CAPTURE(finished.output);
      const std::vector<std::string> modes = words(flag.modes);
      const bool is_accepted = std::find(modes.begin(), modes.end(), mode) != modes.end();
      const std::string& name = flag.words[0];
      CHECK(contains(finished.output, ", and the strategy is " + mode) == !is_accepted);
      if (is_accepted) {  // another error follows
        CHECK(contains(finished.output, name == "--cuda-graph" ? "use --device cuda" : "nowhere.csv"));
        continue;
      }
      CHECK(finished.code == 2);
      CHECK(finished.output.starts_with(std::string(kProgram) + ": " + name + ": is for --strategy "));
      CHECK(contains(finished.output, "\nChoose the strategy with --strategy, or leave " + name + " out\n"));
    }
  }
  CHECK(!std::filesystem::exists(out));
}

TEST_CASE("flags of other modes are refused where no mode is given, and the error names a missing option") {
  check_error(
      {"--micro-batches", "4"},
      {"--micro-batches: is for --strategy accumulate, dp, ddp, zero*, compare only, and the strategy is single, as "
       "no --strategy is given\nChoose the strategy with --strategy, or leave --micro-batches out\n"});
  check_error({"--loss", "replica"}, {"--loss", "single"});
  check_error({"--timeout", "3"}, {"--timeout", "single"});
  check_error({"--nproc", "2", "--loss", "replica"}, {"--loss", "the strategy is ddp\n"});
  check_error({"--trace-kernels"}, {"--trace-kernels", "no trace is requested", "--report"});
  check_error({"--mode", "compare", "--order", "arrival"}, {"--order", "arrival", "use --strategy ddp"});
  check_error({"--mode", "compare", "--comm-hook", "bf16"}, {"--comm-hook", "bf16", "use --strategy ddp"});
  ::setenv("RANK", "0", 1);
  check_error({"--nproc", "2"}, {"--nproc", "a rank of a launcher", "leave --nproc out"});
  check_error({"--loss", "replica"}, {"--loss", "the strategy is ddp, as this is a rank of a launcher"});
  check_error({"--mode", "accumulate"}, {"--strategy", "accumulate", "use --strategy ddp"});
  ::unsetenv("RANK");
}

TEST_CASE("an error on all ranks is printed once") {
  check_error({"--out", fresh("ddp_errors"), "--mode", "ddp", "--file", "nowhere.csv"}, {"nowhere.csv"});
  check_error({"--out", "ddp_errors", "--mode", "compare", "--quiet", "--file", "nowhere.csv"}, {"nowhere.csv"});
}

TEST_CASE("the perceptron and the convolutional network have the same modes") {
  const std::string data = fresh("pictures");
  std::filesystem::create_directories(data);
  write_pictures(data + "/train", 512);
  write_pictures(data + "/t10k", 100);
  for (const char* program : {"fashion_mnist_mlp", "fashion_mnist_cnn"}) {
    const Finished finished = run(program, {"--mode", "compare", "--epochs", "1", "--batch", "128", "--data", data,
                                            "--out", fresh(std::string("compared_") + program)});
    CAPTURE(finished.output);
    REQUIRE(finished.code == 0);
    const auto rows = table(finished.output);
    REQUIRE(rows.size() == 4);
    CHECK(rows.at("accumulate")[kHash] == rows.at("dp")[kHash]);
    CHECK(rows.at("accumulate")[kHash] == rows.at("ddp")[kHash]);
  }
}

TEST_CASE("a missing GPU is one readable error, and so are options that do not fit with one") {
  check_error({"--device", "gpu"}, {"--device", "gpu", "cuda:N"});
  check_error({"--mode", "compare", "--device", "cuda"}, {"--device", "cuda", "compare"});
  check_error({"--mode", "ddp", "--backend", "nccl"}, {"nccl", "--device cuda"});
  if (lockstep::device_count(lockstep::DeviceType::kCuda) > 0) return;
  const std::string out = fresh("no_gpu");
  for (const std::string mode : {"single", "accumulate", "dp", "ddp"})
    check_error({"--out", out, "--mode", mode, "--device", "cuda"}, {"cuda:0", "use cpu"});
  check_error({"--out", out, "--device", "cuda:7"}, {"cuda:7", "use cpu"});
  check_error({"--out", out, "--mode", "ddp", "--device", "cuda", "--backend", "nccl"}, {"cuda:0", "use cpu"});
}
