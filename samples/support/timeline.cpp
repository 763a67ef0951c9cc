#include "support/timeline.h"

#include <fmt/format.h>

#include <fstream>

#include "support/explain.h"
#include "tools/report/json.h"
#include "tools/report/report.h"

namespace samples {

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
    for (const report::StepView& step : last_steps(run, 1)) fmt::print("\n{}", explain(run.mode, step));
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
    if (json.is_discarded() || !json.contains("epoch")) continue;
    losses.push_back(
        {json.at("epoch"), report::to_double(json.at("train_loss")), report::to_double(json.at("test_loss"))});
  }
  return losses;
}

}  // namespace samples
