#include "support/timeline.h"

#include <fmt/format.h>

#include <charconv>
#include <fstream>

#include "support/explain.h"
#include "support/explain_mesh.h"
#include "support/strategy.h"
#include "tools/report/json.h"
#include "tools/report/report.h"

namespace samples {
namespace {

// What the ranks of a run on a mesh have and send; empty for other runs.
std::string mesh_text(const Options& options, const report::Run& run, const report::StepView& step) {
  if (!has_mesh(run.name)) return "";
  Options here = options;
  here.strategy = run.name;  // of the options it is "compare" if several strategies have run
  std::int64_t texts = options.batch / options.micro_batches;
  for (const auto& [key, value] : run.traces[0].notes) {
    if (key == kTextsNote) std::from_chars(value.data(), value.data() + value.size(), texts);
  }
  return explain_mesh(here, static_cast<int>(run.traces.size()), texts, step);
}

}  // namespace

bool is_traced(const Options& options) {
  return !options.trace.empty() || !options.report.empty() || !options.timeline.empty() || options.explain;
}

void write_traces(const Options& options, const std::vector<lockstep::Trace>& traces) {
  if (!options.timeline.empty()) return lockstep::write_chrome_trace(options.timeline, traces);
  if (!options.trace.empty()) lockstep::write_chrome_trace(options.trace, traces);
  const std::vector<report::Run> runs = report::runs_of(traces, options.strategy);
  if (!options.report.empty())
    report::write_report(options.report, {.title = options.program, .command = options.command, .runs = runs});
  if (!options.explain) return;
  for (const report::Run& run : runs) {
    for (const report::StepView& step : last_steps(run, 1))
      fmt::print("\n{}{}", mesh_text(options, run, step), explain(run.name, step));
  }
}

void print_written(const Options& options) {
  if (!options.trace.empty()) fmt::print("trace       {} (for chrome://tracing or ui.perfetto.dev)\n", options.trace);
  if (!options.report.empty()) fmt::print("report      {} (open it in a browser)\n", options.report);
}

std::vector<report::EpochLoss> read_losses(const std::string& path) {
  std::vector<report::EpochLoss> losses;
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) {
    const auto json = report::Json::parse(line, nullptr, /*allow_exceptions=*/false);
    if (json.is_discarded() || !json.contains("step_loss")) continue;
    losses.push_back(
        {json.at("epoch"), report::to_double(json.at("step_loss")), report::to_double(json.at("test_loss"))});
  }
  return losses;
}

}  // namespace samples
