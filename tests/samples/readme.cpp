// Checks that the README is true: its program is a contract program, its output is that of the sample.
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

TEST_CASE("the README's program is contract program 01") {
  const std::string program = read_file(LOCKSTEP_SAMPLE_DATA_DIR "/../../tests/contract/01_single.cpp");
  REQUIRE(!program.empty());
  CHECK(block(program.substr(0, program.find('\n'))) == program);
}

TEST_CASE("the README's expected output is the sample's output, except for numbers") {
  fresh("build");
  const Finished result =
      run("logistic_regression", {"--mode", "compare", "--out", "build/demo/runs/logistic_regression", "--report",
                                  "build/demo/report.html"});  // as in demo.sh
  REQUIRE(result.code == 0);
  const auto shown = lines(block("$ scripts/demo.sh")), printed = lines(result.output);
  REQUIRE(shown.size() > 12);
  std::size_t next = 0;
  for (std::size_t i = 1; i < shown.size(); ++i) {
    CAPTURE(shown[i]);
    if (shown[i] == "...") {
      next = printed.size() - (shown.size() - i - 1);
      continue;
    }
    REQUIRE(next < printed.size());
    CHECK(without_numbers(printed[next++]) == without_numbers(shown[i]));
  }
  CHECK(next == printed.size());
}
