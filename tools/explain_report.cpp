#include "tools/explain_report.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>

#include "tools/report/answers.h"
#include "tools/report/causes.h"
#include "tools/report/chrome_trace.h"
#include "tools/report/report.h"

namespace {

// Adds the runs of a file. A name that another run has already gets the file's name, or a number.
void add_runs(const std::string& path, std::vector<report::Run>& runs) {
  const std::string stem = std::filesystem::path(path).stem().string();
  for (report::Run& run : report::runs_of(report::read_chrome_trace(path), stem)) {
    const auto is_taken = [&](const std::string& name) {
      return std::ranges::find(runs, name, &report::Run::name) != runs.end();
    };
    const std::string own = run.name;
    if (is_taken(run.name)) run.name = fmt::format("{} ({})", own, stem);
    for (int i = 2; is_taken(run.name); ++i) run.name = fmt::format("{} ({} {})", own, stem, i);
    runs.push_back(std::move(run));
  }
}

}  // namespace

std::string make_report(const ReportQuestion& question) {
  report::Report page{.title = question.title, .command = "lockstep-explain report", .runs = {}};
  if (page.title.empty()) page.title = std::filesystem::path(question.traces.at(0)).stem().string();
  for (const std::string& path : question.traces) {
    page.command += " " + path;
    add_runs(path, page.runs);
  }
  report::write_report(question.out, page);
  const std::vector<report::TracedRun> runs = report::traced(page.runs);
  std::string text;
  for (const report::Answer& answer : answers(runs)) text += fmt::format("{}\n  {}\n", answer.question, answer.text);
  for (const report::TracedRun& each : runs)
    text += fmt::format("{}: {}\n", each.run.name, verdict(each.run, each.steps));
  return text + fmt::format("page: {}\n", question.out);
}
