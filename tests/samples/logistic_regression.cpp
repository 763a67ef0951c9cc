// The sample as users run it: from the first run to Ctrl-C and back.
#include "tests/samples/support.h"

#include <lockstep/lockstep.h>

#include <cstdlib>

namespace ls = lockstep;

namespace {

constexpr const char* kProgram = "logistic_regression";

double last_number(const std::string& line) { return std::strtod(line.substr(line.rfind(' ')).c_str(), nullptr); }

// Half a second at least, long enough to be interrupted.
constexpr int kEpochs = 10000 / LOCKSTEP_SLOWDOWN;
std::vector<std::string> long_run(const std::string& out) {
  return {"--out", out, "--epochs", std::to_string(kEpochs), "--lr", "0.01"};
}

// Runs the sample to its end, once, for the tests that compare with this run.
void run_whole() {
  static const int code = run(kProgram, long_run(fresh("whole"))).code;
  REQUIRE(code == 0);
}

void check_same_as_whole(const std::string& out) {
  run_whole();
  CHECK(read_file(out + "/model.safetensors") == read_file("whole/model.safetensors"));
  CHECK(metrics_without_times(out) == metrics_without_times("whole"));
}

}  // namespace

TEST_CASE("with its defaults it reaches 0.97 on unseen rows, and the last line says so") {
  const Finished result = run(kProgram, {"--out", "defaults", "--resume", "no"});
  REQUIRE(result.code == 0);
  const auto text = lines(result.output);
  REQUIRE(text.size() > 20);
  CHECK(text[0].starts_with("epoch  1/20: step loss "));
  CHECK(text.back().starts_with("test accuracy 0."));
  CHECK(text.back().size() == std::string("test accuracy 0.991").size());
  CHECK(last_number(text.back()) >= 0.97);
  CHECK(last_number(text[text.size() - 2]) < 0.1);  // test loss
  CHECK(epochs_written("defaults") == 20);
  const ls::StateDict model = ls::load("defaults/model.safetensors");
  CHECK(model.at("fc.weight").shape() == ls::Shape{1, 30});
}

TEST_CASE("a finished run starts again and ends with the same bits") {
  REQUIRE(run(kProgram, {"--out", fresh("twice")}).code == 0);
  const std::string first = read_file("twice/model.safetensors");
  const Finished second = run(kProgram, {"--out", "twice"});
  CHECK(second.code == 0);
  CHECK(!contains(second.output, "Going on"));
  CHECK(read_file("twice/model.safetensors") == first);
  CHECK(epochs_written("twice") == 20);
}

TEST_CASE("after Ctrl-C the same command continues and ends with the bits of an uninterrupted run") {
  Process process(kProgram, long_run(fresh("interrupted")));
  REQUIRE(eventually([] { return epochs_written("interrupted") >= 30; }));
  process.signal(SIGINT);
  process.require_end(130);
  CHECK(contains(process.output(),
                 "logistic_regression --out interrupted --epochs " + std::to_string(kEpochs) + " --lr 0.01"));
  CHECK(epochs_written("interrupted") < kEpochs);

  const Finished second = run(kProgram, long_run("interrupted"));
  CHECK(second.code == 0);
  CHECK(contains(second.output, "Resuming from interrupted/checkpoint.safetensors"));
  check_same_as_whole("interrupted");
}

TEST_CASE("the command that is printed after a stop does not discard the checkpoint") {
  for (const std::vector<std::string>& no :
       std::vector<std::vector<std::string>>{{"--resume", "no"}, {"--resume=no"}}) {
    auto arguments = long_run(fresh("stopped"));
    arguments.insert(arguments.begin() + 2, no.begin(), no.end());
    Process process(kProgram, arguments);
    REQUIRE(eventually([] { return epochs_written("stopped") >= 3; }));
    process.signal(SIGINT);
    process.require_end(130);
    CHECK(lines(process.output())
              .back()
              .ends_with("logistic_regression --out stopped --epochs " + std::to_string(kEpochs) + " --lr 0.01"));
  }
}

TEST_CASE("after kill -9 the same command continues from the last checkpoint and ends with the same bits") {
  auto arguments = long_run(fresh("killed"));
  arguments.insert(arguments.end(), {"--save-every", "100"});  // the first one long before the run ends
  Process process(kProgram, arguments);
  REQUIRE(eventually([] { return std::filesystem::exists("killed/checkpoint.safetensors"); }));
  process.signal(SIGKILL);
  process.require_end(-SIGKILL);
  const Finished second = run(kProgram, arguments);
  CHECK(second.code == 0);
  CHECK(contains(second.output, "Resuming from killed/checkpoint.safetensors"));
  check_same_as_whole("killed");
}

TEST_CASE("SIGTERM saves like Ctrl-C, and determines the exit code") {
  Process process(kProgram, long_run(fresh("terminated")));
  REQUIRE(eventually([] { return epochs_written("terminated") >= 3; }));
  process.signal(SIGTERM);
  process.require_end(128 + SIGTERM);
  CHECK(std::filesystem::exists("terminated/checkpoint.safetensors"));
}

TEST_CASE("the checkpoint of an unfinished run with other settings is kept, not overwritten") {
  Process process(kProgram, long_run(fresh("aside")));
  REQUIRE(eventually([] { return epochs_written("aside") >= 3; }));
  process.signal(SIGINT);
  process.require_end(130);
  const std::string unfinished = read_file("aside/checkpoint.safetensors");
  const Finished other = run(kProgram, {"--out", "aside", "--epochs", "3"});
  CHECK(other.code == 0);
  CHECK(contains(other.output, "kept as aside/checkpoint.safetensors.previous"));
  CHECK(read_file("aside/checkpoint.safetensors.previous") == unfinished);
}

TEST_CASE("--resume yes adds epochs to a finished run, and fails if there is no checkpoint") {
  REQUIRE(run(kProgram, {"--out", fresh("longer"), "--epochs", "6"}).code == 0);
  REQUIRE(run(kProgram, {"--out", fresh("shorter"), "--epochs", "4"}).code == 0);
  REQUIRE(run(kProgram, {"--out", "shorter", "--epochs", "6", "--resume", "yes"}).code == 0);
  CHECK(read_file("shorter/model.safetensors") == read_file("longer/model.safetensors"));
  CHECK(metrics_without_times("shorter") == metrics_without_times("longer"));
  const Finished nothing = run(kProgram, {"--out", fresh("nowhere"), "--resume", "yes"});
  CHECK(nothing.code == 1);
  CHECK(contains(nothing.output, "nowhere/checkpoint.safetensors"));
}

TEST_CASE("an impossible request is an error of one line, with an exit code") {
  const Finished missing = run(kProgram, {"--out", fresh("errors"), "--file", "nowhere.csv"});
  CHECK(missing.code == 1);
  CHECK(contains(missing.output, "nowhere.csv"));
  CHECK(run(kProgram, {"--out", "errors", "--lr", "-1"}).code != 0);
  CHECK(run(kProgram, {"--out", "errors", "--batch", "0"}).code != 0);
  CHECK(run(kProgram, {"--out", "errors", "--epochs", "many"}).code != 0);
  const Finished no_gpu = run(kProgram, {"--out", "errors", "--cuda-graph"});
  CHECK(no_gpu.code == 2);
  CHECK(contains(no_gpu.output, "--cuda-graph: has an effect only on a cuda device, and the device is cpu"));
  std::ofstream("errors.txt") << "a file, not a folder";
  const Finished blocked = run(kProgram, {"--out", "errors.txt/below"});
  CHECK(blocked.code == 1);
  CHECK(contains(blocked.output, "errors.txt/below"));
}

TEST_CASE("a damaged checkpoint is named, and not overwritten") {
  std::filesystem::create_directories(fresh("damaged"));
  std::ofstream("damaged/checkpoint.safetensors") << "not a checkpoint";
  const Finished result = run(kProgram, {"--out", "damaged"});
  CHECK(result.code == 1);
  CHECK(contains(result.output, "damaged/checkpoint.safetensors"));
  CHECK(read_file("damaged/checkpoint.safetensors") == "not a checkpoint");
}

TEST_CASE("--help names every option") {
  const Finished help = run(kProgram, {"--help"});
  CHECK(help.code == 0);
  for (const char* option : {"--file", "--epochs", "--batch", "--lr", "--seed", "--out", "--save", "--resume", "--mode",
                             "--micro-batches", "--nproc", "--loss", "--cuda-graph", "--quiet"}) {
    CHECK(contains(help.output, option));
  }
}
