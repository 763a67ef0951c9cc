// Checks that the guide and the pages for lecturers are true: their commands are run and the output compared, the guide's
// C++ is that of the files it names.
//
// A fenced block of language `console` has commands, after "$ ", and their output. A line `...` stands for any lines.
// ~12.3 stands for one word that differs from run to run, as may the unit after it (ns, us, ms, s). Words of 16
// hexadecimal digits are hashes, which differ between processors: within a chapter, two that are equal on the page
// must be equal in the run. Other numbers with a point may be 2 % off.
#include "tests/samples/support.h"

#include <cmath>
#include <cstdlib>
#include <map>
#include <regex>
#include <utility>

namespace {

const std::string kSource = LOCKSTEP_SAMPLE_DATA_DIR "/../..";
const std::string kGuide = kSource + "/docs/internals";

struct Block {
  std::string language;
  std::vector<std::string> lines;
};

std::vector<Block> blocks_of(const std::string& page) {
  std::vector<Block> blocks;
  bool inside = false;
  for (const std::string& line : lines(read_file(page))) {
    if (line.starts_with("```")) {
      inside = !inside;
      if (inside) blocks.push_back({.language = line.substr(3), .lines = {}});
    } else if (inside) {
      blocks.back().lines.push_back(line);
    }
  }
  CHECK_MESSAGE(!inside, page, ": the page ends inside a fenced block");
  return blocks;
}

std::vector<std::string> words(const std::string& line) {
  std::istringstream stream(line);
  return {std::istream_iterator<std::string>(stream), {}};
}

// Compares output with the page, and learns which hash of the page corresponds to which one here.
class Comparison {
 public:
  bool same_line(const std::string& shown, const std::string& printed) {
    const auto want = words(shown), have = words(printed);
    if (want.size() != have.size()) return false;
    const auto before = std::make_pair(here_, page_);
    for (std::size_t i = 0; i < want.size(); ++i) {
      if (i > 0 && want[i - 1].starts_with('~') && is_unit(want[i]) && is_unit(have[i])) continue;
      if (same_word(want[i], have[i])) continue;
      std::tie(here_, page_) = before;
      return false;
    }
    return true;
  }

 private:
  static bool is_unit(const std::string& word) {
    static const std::regex unit("(n|u|m)?s[,.:]?");
    return std::regex_match(word, unit);
  }

  bool same_word(const std::string& want, const std::string& have) {
    static const std::regex hash("[0-9a-f]{16}[,.:]?"), fraction("-?[0-9]+\\.[0-9]+");
    if (want == have && !std::regex_match(want, hash)) return true;
    if (want.starts_with('~')) return true;
    if (std::regex_match(want, hash) && std::regex_match(have, hash))
      return here_.emplace(want, have).first->second == have && page_.emplace(have, want).first->second == want;
    if (!std::regex_match(want, fraction) || !std::regex_match(have, fraction)) return false;
    const double shown = std::stod(want), printed = std::stod(have);
    return std::abs(printed - shown) <= 0.02 * std::abs(shown);
  }

  std::map<std::string, std::string> here_, page_;  // from the page's hashes to those of the run, and back
};

void check_output(const std::vector<std::string>& shown, const std::vector<std::string>& printed, Comparison& same) {
  std::size_t next = 0;
  bool may_skip = false;
  for (const std::string& line : shown) {
    if (line == "...") {
      may_skip = true;
      continue;
    }
    const std::size_t from = next;
    while (may_skip && next < printed.size() && !same.same_line(line, printed[next])) ++next;
    const bool found = next < printed.size() && same.same_line(line, printed[next]);
    CHECK_MESSAGE(found, "shown:   ", line, "\nprinted: ", from < printed.size() ? printed[from] : "(nothing more)");
    if (!found) return;
    ++next;
    may_skip = false;
  }
  const bool complete = may_skip || next == printed.size() || shown.empty();
  CHECK_MESSAGE(complete, "printed, but not shown: ", next < printed.size() ? printed[next] : "");
}

// Runs the commands of a block in the folder that the chapter's commands share.
void check_console(const Block& block, Comparison& same) {
  for (std::size_t i = 0; i < block.lines.size();) {
    REQUIRE_MESSAGE(block.lines[i].starts_with("$ "), "expected a command after \"$ \": ", block.lines[i]);
    const std::string command = block.lines[i].substr(2);
    std::vector<std::string> shown;
    while (++i < block.lines.size() && !block.lines[i].starts_with("$ ")) shown.push_back(block.lines[i]);
    CAPTURE(command);
    const std::string limit = std::to_string(180 * LOCKSTEP_SLOWDOWN);
    const Finished result = run("/usr/bin/timeout", {limit, "bash", "-c", command});
    CAPTURE(result.output);
    CHECK(result.code == 0);
    check_output(shown, lines(result.output), same);
  }
}

// True if `part` is a run of consecutive lines of `text`.
bool is_part(const std::vector<std::string>& part, const std::string& text) {
  std::string joined = "\n";
  for (const std::string& line : part) joined += line + "\n";
  return contains("\n" + text, joined);
}

// Checks that C++ on a page is a part of a program of the guide, or of a file that the page links to.
void check_quotation(const Block& block, const std::string& page) {
  std::vector<std::filesystem::path> files;
  for (const auto& each : std::filesystem::directory_iterator(kGuide + "/programs")) files.push_back(each.path());
  static const std::regex link("\\]\\(([^)#]+\\.(h|cpp))\\)");
  const std::string text = read_file(page);
  for (std::sregex_iterator each(text.begin(), text.end(), link), end; each != end; ++each)
    files.push_back(std::filesystem::path(kGuide) / (*each)[1].str());
  bool found = false;
  for (const auto& file : files) found = found || is_part(block.lines, read_file(file.string()));
  CHECK_MESSAGE(found, "not a part of a program or of a file that the page links to:\n", block.lines.at(0));
}

}  // namespace

TEST_CASE("the guide's commands print the output on its pages, and its C++ equals the files") {
  const std::string built = LOCKSTEP_SAMPLES_DIR "/..";
  const std::string path = built + "/samples:" + built + "/tools:" + built + "/guide:" + std::getenv("PATH");
  setenv("PATH", path.c_str(), 1);
  std::vector<std::string> pages;
  for (const auto& each : std::filesystem::directory_iterator(kGuide)) {
    if (each.path().extension() == ".md" && each.path().filename() != "README.md")
      pages.push_back(each.path().string());
  }
  std::sort(pages.begin(), pages.end());
  for (const char* page : {"course", "exam", "teaching"}) pages.push_back(kSource + "/docs/" + page + ".md");
  REQUIRE(!pages.empty());
  for (const std::string& page : pages) {
    CAPTURE(page);
    std::size_t commands = 0;
    Comparison same;
    fresh("runs");
    fresh("docs");
    std::filesystem::create_directory_symlink(kSource + "/docs", "docs");  // as in the root of the source
    for (const Block& block : blocks_of(page)) {
      CHECK_MESSAGE((block.language == "console" || block.language == "cpp" || block.language == "text"),
                    "a block is console, cpp or text: ", block.language);
      if (block.language == "console") check_console(block, same);
      if (block.language == "cpp") check_quotation(block, page);
      commands += block.language == "console";
    }
    CHECK(commands > 0);
  }
}

TEST_CASE("the guide's programs are short") {
  for (const auto& each : std::filesystem::directory_iterator(kGuide + "/programs")) {
    if (each.path().extension() == ".cpp")
      CHECK_MESSAGE(lines(read_file(each.path().string())).size() <= 40, each.path());
  }
}

TEST_CASE("the guide's figures equal the output of its script") {
  const std::string script = kSource + "/scripts/guide_figures.sh", folder = fresh("figures");
  const Finished result = run("/usr/bin/env", {"bash", script, LOCKSTEP_SAMPLES_DIR "/..", folder});
  CAPTURE(result.output);
  REQUIRE(result.code == 0);
  std::size_t figures = 0;
  for (const auto& each : std::filesystem::directory_iterator(kGuide + "/figures")) {
    CAPTURE(each.path());
    CHECK(read_file(each.path().string()) == read_file(folder + "/" + each.path().filename().string()));
    ++figures;
  }
  CHECK(figures == static_cast<std::size_t>(std::distance(std::filesystem::directory_iterator(folder),
                                                          std::filesystem::directory_iterator())));
  CHECK(figures > 0);
}
