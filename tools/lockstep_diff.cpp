// lockstep-diff: where two recorded runs first differ.
//   LOCKSTEP_RECORD=a ./program; LOCKSTEP_RECORD=b lockstep-run -n 2 ./program; lockstep-diff a b
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cstdio>
#include <exception>
#include <string>
#include <vector>

#include "tools/command_line.h"
#include "tools/diff/first_difference.h"
#include "tools/report/json.h"

namespace {

using diff::Comparison;
using diff::Difference;
using report::Json;

std::string ranks_text(const std::vector<int>& ranks) {
  return fmt::format("rank{} {}", ranks.size() == 1 ? "" : "s", fmt::join(ranks, ", "));
}

// "[0, 3, 17]"
std::string position_text(const lockstep::Shape& shape, std::int64_t element) {
  std::vector<std::int64_t> position;
  for (std::size_t d = shape.size(); d-- > 0; element /= shape[d])
    position.insert(position.begin(), element % shape[d]);
  return fmt::format("[{}]", fmt::join(position, ", "));
}

std::string text_of(const Difference& difference, const std::string& a, const std::string& b) {
  const bool is_within = !difference.within.empty();
  std::string text = is_within ? fmt::format("The ranks of {} have different values: {}\n", difference.within,
                                             describe(difference.key))
                               : fmt::format("The runs differ first in {}\n", describe(difference.key));
  if (difference.what_differs != "values") text += fmt::format("  {}\n", difference.what_differs);
  text += fmt::format("  {}: {}\n  {}: {}\n", is_within ? "some" : a, ranks_text(difference.ranks_a),
                      is_within ? "others" : b, ranks_text(difference.ranks_b));
  if (difference.element) {
    text += fmt::format("  element {} {}: {:.9g} ({:#x}) on rank {}, {:.9g} ({:#x}) on rank {}\n", *difference.element,
                        position_text(difference.shape, *difference.element), difference.a.value, difference.a.bits,
                        difference.a.rank, difference.b.value, difference.b.bits, difference.b.rank);
    text += fmt::format("  {} of {} elements differ\n", difference.differing, difference.elements);
  } else if (difference.what_differs == "values") {
    text +=
        "  For the element, record the values of both runs: RecorderOptions{.values = true}, or "
        "LOCKSTEP_RECORD_VALUES=1\n";
  }
  return text + (is_within ? "" : std::string(meaning(difference.key.what)) + "\n");
}

Json json_of(const Comparison& comparison) {
  Json json = {{"equal", !comparison.first},
               {"equal_tensors", comparison.equal},
               {"steps", comparison.steps},
               {"only_a", comparison.only_a},
               {"only_b", comparison.only_b}};
  if (!comparison.first) return json;
  const Difference& first = *comparison.first;
  Json& out = json["first"];
  out = {{"step", first.key.step},
         {"what", diff::name(first.key.what)},
         {"micro_batch", first.key.micro_batch},
         {"name", first.key.name},
         {"call", first.key.call},
         {"differs", first.what_differs},
         {"within", first.within},
         {"ranks_a", first.ranks_a},
         {"ranks_b", first.ranks_b}};
  if (!first.element) return json;
  const auto element = [](const diff::Element& each) {
    return Json{{"value", report::to_json(each.value)}, {"bits", fmt::format("{:#x}", each.bits)}, {"rank", each.rank}};
  };
  out["element"] = *first.element;
  out["a"] = element(first.a);
  out["b"] = element(first.b);
  out["differing"] = first.differing;
  out["elements"] = first.elements;
  return json;
}

int run(const std::string& a, const std::string& b, const diff::Question& question, bool as_json) {
  const Comparison comparison = diff::compare(diff::read_run(a), diff::read_run(b), question);
  if (comparison.equal == 0 && !comparison.first)
    throw lockstep::IoError(fmt::format("{} and {} have no tensor in common{}", a, b,
                                        comparison.example.empty() ? "" : "; one has " + comparison.example));
  if (as_json) {
    fmt::print("{}\n", json_of(comparison).dump(2));
  } else {
    if (comparison.first) fmt::print("{}", text_of(*comparison.first, a, b));
    fmt::print("{}{} tensors of {} steps are equal{}\n", comparison.first ? "Before it, " : "", comparison.equal,
               comparison.steps, comparison.first ? "" : ": the runs have the same bits");
    if (const std::int64_t others = comparison.only_a + comparison.only_b; others > 0)
      fmt::print("Not compared: {} tensors of {} and {} of {}, which the other run does not have, for example {}\n",
                 comparison.only_a, a, comparison.only_b, b, comparison.example);
  }
  return comparison.first ? 1 : 0;
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app("Says where two training runs, recorded in any modes and on any numbers of ranks, first differ",
               "lockstep-diff");
  std::string a, b;
  diff::Question question;
  std::int64_t step = 0;
  bool as_json = false;
  app.add_option("A", a, "directory of the first run")->required()->type_name("DIRECTORY");
  app.add_option("B", b, "directory of the second run")->required()->type_name("DIRECTORY");
  app.add_option(
         "--module", question.modules,
         "compare only modules whose path this describes, and all below them; * stands for any text without a dot")
      ->type_name("PATTERN");
  CLI::Option* const one_step =
      app.add_option("--step", step, "compare only this step; the first is 0")->type_name("N");
  app.add_flag("--json", as_json, "print JSON");
  app.footer(
      "Record the runs with parallel::Recorder, or with LOCKSTEP_RECORD=DIRECTORY in the environment.\n"
      "Exits with 0 if the runs are equal, 1 if they differ, 2 after an error.");
  command_line::complete(app);
  try {
    app.parse(argc, argv);
    if (one_step->count() > 0) question.step = step;
    return run(a, b, question, as_json);
  } catch (const CLI::ParseError& error) {
    return command_line::report(app, error);
  } catch (const std::exception& error) {
    fmt::print(stderr, "lockstep-diff: {}\n", error.what());
    return 2;
  }
}
