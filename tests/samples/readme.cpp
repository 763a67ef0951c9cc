// Checks that the README is true: its program is a sample, its table is the output of the demo.
#include "tests/samples/support.h"

#include <regex>

namespace {

const std::string& readme() {
  static const std::string text = read_file(LOCKSTEP_SAMPLE_DATA_DIR "/../../README.md");
  return text;
}

// Returns the first fenced block that begins with `start`.
std::string block(const std::string& start) {
  const std::size_t begin = readme().find("\n" + start);
  REQUIRE(begin != std::string::npos);
  return readme().substr(begin + 1, readme().find("\n```", begin + 1) - begin);
}

// Replaces each number, with the spaces that align it, and each hash by one #: numbers differ between processors,
// times from run to run, the form does not.
std::string without_numbers(const std::string& text) {
  return std::regex_replace(text, std::regex(" *\\b([0-9a-f]{16}|[0-9][0-9.]*)\\b"), " #");
}

}  // namespace

TEST_CASE("the README's program is a sample, which runs alone and as several ranks") {
  const std::string program = read_file(LOCKSTEP_SAMPLE_DATA_DIR "/../minimal_ddp.cpp");
  REQUIRE(!program.empty());
  CHECK(block(program.substr(0, program.find('\n'))) == program);

  std::filesystem::create_directories(fresh("minimal_ddp"));
  const Finished alone = run("minimal_ddp", {});
  CHECK_MESSAGE((alone.code == 0 && contains(alone.output, "rank 0 of 1: parameters ")), alone.output);
  const Finished ranks = run(LOCKSTEP_RUN, {"--nproc-per-node", "2", LOCKSTEP_SAMPLES_DIR "/minimal_ddp"});
  CHECK_MESSAGE((ranks.code == 0 && contains(ranks.output, "rank 1 of 2: parameters ")), ranks.output);
}

TEST_CASE("the README's table is the sample's output, except for numbers") {
  if (!std::filesystem::exists("/usr/share/datasets/fashion-mnist/train-images-idx3-ubyte.gz")) {
    MESSAGE("SKIPPED: dataset-fashion-mnist is not installed");
    return;
  }
  fresh("build");
  const Finished result =
      run("fashion_mnist_mlp", {"--mode", "compare", "--epochs", "1", "--out", "build/demo/runs/fashion_mnist_mlp",
                                "--report", "build/demo/report.html"});  // as in demo.sh
  REQUIRE(result.code == 0);
  const auto shown = lines(block("                      train ")), printed = lines(result.output);
  REQUIRE(shown.size() > 7);
  std::size_t next = 0;
  for (std::size_t i = 0; i < shown.size(); ++i) {
    const bool skips = i == 0 || shown[i] == "...";  // lines up to the next one that is shown
    if (shown[i] == "...") ++i;
    REQUIRE(i < shown.size());
    CAPTURE(shown[i]);
    const auto is_shown = [&] { return without_numbers(printed[next]) == without_numbers(shown[i]); };
    while (skips && next < printed.size() && !is_shown()) ++next;
    REQUIRE(next < printed.size());
    CHECK(is_shown());
    ++next;
  }
}
