// The README shows what is: its program is a contract program, its output is what the sample prints.
#include "tests/samples/support.h"

#include <regex>

namespace {

const std::string& readme() {
  static const std::string text = read_file(LOCKSTEP_SAMPLE_DATA_DIR "/../../README.md");
  return text;
}

// The first fenced block that begins with `start`.
std::string block(const std::string& start) {
  const std::size_t begin = readme().find("\n" + start);
  REQUIRE(begin != std::string::npos);
  return readme().substr(begin + 1, readme().find("\n```", begin + 1) - begin);
}

// Numbers differ between processors, times from run to run; the form does not. A number, with the spaces that align it,
// becomes one #; so does a hash.
std::string without_numbers(const std::string& text) {
  return std::regex_replace(text, std::regex(" *\\b([0-9a-f]{16}|[0-9][0-9.]*)\\b"), " #");
}

}  // namespace

TEST_CASE("the README's program is contract program 01") {
  const std::string program = read_file(LOCKSTEP_SAMPLE_DATA_DIR "/../../tests/contract/01_single.cpp");
  REQUIRE(!program.empty());
  CHECK(block(program.substr(0, program.find('\n'))) == program);
}

TEST_CASE("the README's expected output is what the sample prints, up to numbers") {
  fresh("build");
  const Finished result =
      run("logistic_regression", {"--mode", "compare", "--out", "build/demo/runs/logistic_regression", "--report",
                                  "build/demo/report.html"});  // as demo.sh
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
