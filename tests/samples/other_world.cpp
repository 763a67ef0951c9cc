// Runs that lose ranks permanently: they continue with fewer, and end with the bits of an undisturbed run.
#include "tests/samples/support.h"

namespace {

constexpr const char* kProgram = "logistic_regression";
constexpr int kEpochs = 2000 / LOCKSTEP_SLOWDOWN;  // long enough to be interrupted after 30 epochs

std::vector<std::string> program(const std::string& out) {
  return {std::string(LOCKSTEP_SAMPLES_DIR) + "/" + kProgram,
          "--mode",
          "ddp",
          "--micro-batches",
          "4",
          "--save-every",
          "10",
          "--epochs",
          std::to_string(kEpochs),
          "--lr",
          "0.01",
          "--out",
          out};
}

std::vector<std::string> launched(std::vector<std::string> options, const std::string& out) {
  for (const std::string& word : program(out)) options.push_back(word);
  return options;
}

// Compares with an undisturbed run in one process, whose bits the others must match.
void check_same_as_whole(const std::string& out) {
  static const int code = run(kProgram, {"--mode", "accumulate", "--micro-batches", "4", "--epochs",
                                         std::to_string(kEpochs), "--lr", "0.01", "--out", fresh("whole")})
                              .code;
  REQUIRE(code == 0);
  CHECK(read_file(out + "/model.safetensors") == read_file("whole/model.safetensors"));
  CHECK(metrics_without_times(out) == metrics_without_times("whole"));
}

}  // namespace

TEST_CASE("four ranks of a micro-batch each, one of them killed, continue as two ranks of two or one of four") {
  Process four(LOCKSTEP_RUN, launched({"--nproc-per-node", "4"}, fresh("four")));
  REQUIRE(eventually([] { return epochs_written("four") >= 30; }));
  const pid_t rank = find_rank(four.pid(), 2);
  REQUIRE(rank > 0);
  kill(rank, SIGKILL);
  four.require_end(128 + SIGKILL);
  REQUIRE(epochs_written("four") < kEpochs);
  for (const std::string nproc : {"4", "2", "1"}) {
    CAPTURE(nproc);
    const std::string out = fresh("four_" + nproc);
    std::filesystem::copy("four", out);
    const Finished finished = run(LOCKSTEP_RUN, launched({"--nproc-per-node", nproc}, out));
    CAPTURE(finished.output);
    CHECK(finished.code == 0);
    CHECK(contains(finished.output, "Resuming from " + out + "/checkpoint.safetensors"));
    check_same_as_whole(out);
  }
}
