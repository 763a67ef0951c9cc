// lockstep-diff: where two recorded runs first differ.
//   LOCKSTEP_RECORD=a ./program; LOCKSTEP_RECORD=b lockstep-run -n 2 ./program; lockstep-diff a b
#include <fmt/format.h>

#include <cstdio>
#include <exception>
#include <string>
#include <vector>

#include "tools/command_line.h"
#include "tools/diff/text.h"
#include "tools/report/json.h"

namespace {

using diff::Comparison;
using diff::Difference;
using report::Json;

Json json_of(const Comparison& comparison) {
  Json json = {{"equal", comparison.is_equal()},
               {"equal_tensors", comparison.equal},
               {"steps", comparison.steps},
               {"only_a", comparison.only_a},
               {"only_b", comparison.only_b},
               {"steps_only_a", comparison.steps_only_a},
               {"steps_only_b", comparison.steps_only_b}};
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

int run(const std::string& a, const std::string& b, const diff::Filter& filter, bool as_json) {
  const Comparison comparison = diff::compare(diff::read_run(a), diff::read_run(b), filter);
  if (comparison.equal == 0 && !comparison.first)
    throw lockstep::IoError(
        fmt::format("{} and {} have no tensor in common{}\nRecord both with the same modules and steps", a, b,
                    comparison.example.empty() ? "" : "; one has " + comparison.example));
  fmt::print("{}", as_json ? json_of(comparison).dump(2) + "\n" : diff::as_text(comparison, a, b));
  return comparison.is_equal() ? 0 : 1;
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app(
      "Finds the first tensor in which two recorded training runs differ. The runs may have different modes and "
      "numbers of ranks",
      "lockstep-diff");
  std::string a, b;
  diff::Filter filter;
  std::int64_t step = 0;
  bool as_json = false;
  app.add_option("A", a, "directory of the first run")->required();
  app.add_option("B", b, "directory of the second run")->required();
  app.add_option("--module", filter.modules,
                 "compare only modules with this path, and those below them; * stands for any text without '.'; may be "
                 "given several times")
      ->type_name("PATTERN")
      ->expected(1)
      ->take_all();
  CLI::Option* const one_step =
      app.add_option("--step", step, "compare only this step; they count from 0")->type_name("N");
  app.add_flag("--json", as_json, "print the result as JSON");
  app.footer(
      "Record the runs with parallel::Recorder, or with LOCKSTEP_RECORD=DIRECTORY in the environment, and their values "
      "with LOCKSTEP_RECORD_VALUES=1.\n"
      "Exits with 0 if the runs are equal, 1 if they differ or one lacks steps of the other, 2 after an error.");
  command_line::complete(app);
  try {
    app.parse(argc, argv);
    if (one_step->count() > 0) filter.step = step;
    return run(a, b, filter, as_json);
  } catch (const CLI::ParseError& error) {
    return command_line::report(app, error);
  } catch (const std::exception& error) {
    fmt::print(stderr, "lockstep-diff: {}\n", error.what());
    return 2;
  }
}
