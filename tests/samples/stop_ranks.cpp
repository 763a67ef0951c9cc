// Ctrl-C in several ranks: they stop after the same step, and the run continues in any mode with the same
// micro-batches.
#include "tests/samples/support.h"

namespace {

constexpr const char* kProgram = "logistic_regression";

// Half a second at least, long enough to be interrupted after 30 epochs.
constexpr int kEpochs = 6000 / LOCKSTEP_SLOWDOWN;
std::vector<std::string> long_run(const std::string& out, std::vector<std::string> mode) {
  mode.insert(mode.end(), {"--out", out, "--epochs", std::to_string(kEpochs), "--lr", "0.01"});
  return mode;
}
const std::vector<std::string> kAccumulate = {"--mode", "accumulate"};
const std::vector<std::string> kOneRank = {"--mode", "ddp", "--nproc", "1"};
const std::vector<std::string> kTwoRanks = {"--mode", "ddp", "--nproc", "2"};

// An uninterrupted run in mode accumulate, whose bits the others must match.
void run_whole() {
  static const int code = run(kProgram, long_run(fresh("whole"), kAccumulate)).code;
  REQUIRE(code == 0);
}

void start_and_stop(const std::string& out, const std::vector<std::string>& mode, int signal) {
  Process process(kProgram, long_run(fresh(out), mode));
  REQUIRE(eventually([&] { return epochs_written(out) >= 30; }));
  process.signal(signal);
  process.require_end(128 + signal);
  CAPTURE(process.output());
  CHECK(contains(process.output(), "Stopped in epoch "));
  CHECK(lines(process.output())
            .back()
            .ends_with("--out " + out + " --epochs " + std::to_string(kEpochs) + " --lr 0.01"));  // as it was typed
  CHECK(!contains(process.output(), "First to fail"));
  CHECK(epochs_written(out) < kEpochs);
}

void go_on(const std::string& out, const std::vector<std::string>& mode) {
  run_whole();
  const Finished finished = run(kProgram, long_run(out, mode));
  REQUIRE(finished.code == 0);
  CHECK(contains(finished.output, "Resuming from " + out + "/checkpoint.safetensors"));
  CHECK(read_file(out + "/model.safetensors") == read_file("whole/model.safetensors"));
  CHECK(metrics_without_times(out) == metrics_without_times("whole"));
}

}  // namespace

TEST_CASE("two ranks stop at Ctrl-C, and the same command ends with the bits of an uninterrupted run") {
  start_and_stop("two", kTwoRanks, SIGINT);
  go_on("two", kTwoRanks);
}

TEST_CASE("a run that two ranks started continues in one rank, and in one process without ranks") {
  start_and_stop("two_one", kTwoRanks, SIGTERM);
  std::filesystem::remove_all("two_micro_batches");
  std::filesystem::copy("two_one", "two_micro_batches");
  go_on("two_one", kOneRank);
  go_on("two_micro_batches", kAccumulate);
}

TEST_CASE("a run that one process started continues in two ranks") {
  start_and_stop("accumulate_two", kAccumulate, SIGINT);
  go_on("accumulate_two", kTwoRanks);
}

TEST_CASE("a signal to one rank alone stops all of them after the same step") {
  Process process(kProgram, long_run(fresh("one_signal"), kTwoRanks));
  REQUIRE(eventually([] { return epochs_written("one_signal") >= 30; }));
  const pid_t rank = find_rank(process.pid(), 1);
  REQUIRE(rank > 0);
  kill(rank, SIGTERM);
  process.require_end(128 + SIGTERM);
  CHECK(contains(process.output(), "Stopped in epoch "));
  go_on("one_signal", kAccumulate);
}

TEST_CASE("a rank that is killed is named, and the run continues from the checkpoint") {
  start_and_stop("killed_rank", kTwoRanks, SIGINT);
  const std::size_t before = epochs_written("killed_rank");
  Process process(kProgram, long_run("killed_rank", kTwoRanks));
  REQUIRE(eventually([&] { return epochs_written("killed_rank") > before; }));
  const pid_t rank = find_rank(process.pid(), 1);
  REQUIRE(rank > 0);
  kill(rank, SIGKILL);
  process.require_end(128 + SIGKILL);
  CHECK(contains(process.output(), "rank 1 (pid " + std::to_string(rank) + ") was killed by signal 9"));
  go_on("killed_rank", kAccumulate);
}

TEST_CASE("a launcher restarts ranks, and they end with the bits of an undisturbed run") {
  std::vector<std::string> arguments = {"--nproc-per-node", "2", "--max-restarts", "2",
                                        std::string(LOCKSTEP_SAMPLES_DIR) + "/" + kProgram};
  const auto program = long_run(fresh("restarted"), {"--mode", "ddp", "--save-every", "10"});
  arguments.insert(arguments.end(), program.begin(), program.end());
  Process launcher(LOCKSTEP_RUN, arguments);
  for (int rank : {1, 0}) {  // in the first attempt, and in the second
    std::size_t before = epochs_written("restarted");
    REQUIRE(eventually([&] { return epochs_written("restarted") >= before + 30; }));
    const pid_t pid = find_rank(launcher.pid(), rank);
    REQUIRE(pid > 0);
    kill(pid, SIGKILL);
    // Later output is that of the next attempt.
    REQUIRE(
        eventually([&] { return contains(read_file(launcher.output_path()), rank == 1 ? "restart 1" : "restart 2"); }));
    REQUIRE(eventually([&] { return find_rank(launcher.pid(), 0) > 0; }));
  }
  run_whole();
  const int code = launcher.wait();
  CAPTURE(launcher.output());
  CHECK(code == 0);
  CHECK(contains(launcher.output(), "Resuming from restarted/checkpoint.safetensors"));
  CHECK(read_file("restarted/model.safetensors") == read_file("whole/model.safetensors"));
  CHECK(metrics_without_times("restarted") == metrics_without_times("whole"));
}

TEST_CASE("a run with another number of micro-batches is another run") {
  start_and_stop("other_micro_batches", kTwoRanks, SIGINT);
  const Finished finished =
      run(kProgram, {"--mode", "accumulate", "--micro-batches", "4", "--out", "other_micro_batches", "--epochs", "2"});
  CHECK(finished.code == 0);
  CHECK(contains(finished.output, "micro-batches=2"));
  CHECK(std::filesystem::exists("other_micro_batches/checkpoint.safetensors.previous"));
}
