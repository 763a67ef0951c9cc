#include "support/timeline.h"

#include <fmt/format.h>

#include <fstream>

#include "support/explain.h"
#include "support/json.h"
#include "support/report.h"

namespace samples {
namespace {

namespace ls = lockstep;
using Json = nlohmann::ordered_json;

Json to_json(const ls::TraceEvent& event) {
  const ls::TraceLabels& labels = event.labels;
  return {static_cast<int>(event.kind),
          event.name,
          event.thread,
          event.begin,
          event.end,
          labels.bytes,
          labels.from,
          labels.to,
          labels.id,
          labels.phase,
          labels.group};
}

ls::TraceEvent to_event(const Json& json) {
  const int kind = json.at(0);
  if (kind < 0 || kind >= ls::kTraceKindCount) throw ls::IoError(fmt::format("there is no event of kind {}", kind));
  return {.kind = static_cast<ls::TraceKind>(kind),
          .name = json.at(1),
          .thread = json.at(2),
          .begin = json.at(3),
          .end = json.at(4),
          .labels = {.bytes = json.at(5),
                     .from = json.at(6),
                     .to = json.at(7),
                     .id = json.at(8),
                     .phase = json.at(9),
                     .group = json.at(10)}};
}

Json to_json(const ls::Trace& trace) {
  Json events = Json::array();
  for (const ls::TraceEvent& event : trace.events) events.push_back(to_json(event));
  return {{"process", trace.process},         {"rank", trace.rank},       {"clock_offset", trace.clock_offset},
          {"clock_error", trace.clock_error}, {"dropped", trace.dropped}, {"events", std::move(events)}};
}

ls::Trace to_trace(const Json& json) {
  ls::Trace trace{.process = json.at("process"),
                  .rank = json.at("rank"),
                  .clock_offset = json.at("clock_offset"),
                  .clock_error = json.at("clock_error"),
                  .dropped = json.at("dropped")};
  for (const Json& event : json.at("events")) trace.events.push_back(to_event(event));
  return trace;
}

Json to_json(const std::vector<ls::parallel::LinkTraffic>& links) {
  Json rows = Json::array();
  for (const auto& link : links)
    rows.push_back({link.from, link.to, static_cast<int>(link.phase), link.bytes, link.transfers});
  return rows;
}

std::vector<ls::parallel::LinkTraffic> to_links(const Json& rows) {
  std::vector<ls::parallel::LinkTraffic> links;
  for (const Json& row : rows) {
    const int phase = row.at(2);
    if (phase < 0 || phase >= ls::parallel::kPhaseCount) throw ls::IoError(fmt::format("there is no phase {}", phase));
    links.push_back({row.at(0), row.at(1), static_cast<ls::parallel::Phase>(phase), row.at(3), row.at(4)});
  }
  return links;
}

void write_timeline(const std::string& path, const Timeline& timeline) {
  Json traces = Json::array(), losses = Json::array();
  for (const ls::Trace& trace : timeline.traces) traces.push_back(to_json(trace));
  for (const EpochLoss& each : timeline.losses)
    losses.push_back({each.epoch, samples::to_json(each.train), samples::to_json(each.test)});
  const Json json = {{"mode", timeline.mode},
                     {"steps", timeline.steps},
                     {"at_start", to_json(timeline.at_start)},
                     {"in_steps", to_json(timeline.in_steps)},
                     {"losses", std::move(losses)},
                     {"traces", std::move(traces)}};
  std::ofstream file(path, std::ios::trunc);
  file << json << std::endl;
  if (!file) throw ls::IoError(fmt::format("{}: cannot be written", path));
}

}  // namespace

bool is_traced(const Options& options) {
  return !options.trace.empty() || !options.report.empty() || !options.timeline.empty() || options.explain;
}

void write_timelines(const Options& options, const std::vector<Timeline>& timelines) {
  if (!options.timeline.empty()) return write_timeline(options.timeline, timelines.at(0));
  if (!options.trace.empty()) {
    std::vector<ls::Trace> all;
    for (const Timeline& timeline : timelines) all.insert(all.end(), timeline.traces.begin(), timeline.traces.end());
    ls::write_chrome_trace(options.trace, all);
  }
  if (!options.report.empty()) write_report(options, timelines);
  if (!options.explain) return;
  for (const Timeline& timeline : timelines) {
    for (const StepView& step : last_steps(timeline, 1)) fmt::print("\n{}", explain(timeline.mode, step));
  }
}

void print_written(const Options& options) {
  if (!options.trace.empty()) fmt::print("trace       {} (for chrome://tracing or ui.perfetto.dev)\n", options.trace);
  if (!options.report.empty()) fmt::print("report      {} (open it in a browser)\n", options.report);
}

Timeline read_timeline(const std::string& path) {
  try {
    std::ifstream file(path);
    const Json json = Json::parse(file);
    Timeline timeline{.mode = json.at("mode"),
                      .steps = json.at("steps"),
                      .at_start = to_links(json.at("at_start")),
                      .in_steps = to_links(json.at("in_steps"))};
    for (const Json& row : json.at("losses"))
      timeline.losses.push_back({row.at(0), to_double(row.at(1)), to_double(row.at(2))});
    for (const Json& trace : json.at("traces")) timeline.traces.push_back(to_trace(trace));
    return timeline;
  } catch (const nlohmann::json::exception& error) {
    throw ls::IoError(fmt::format("{}: not a timeline of this program: {}", path, error.what()));
  }
}

std::vector<EpochLoss> read_losses(const std::string& path) {
  std::vector<EpochLoss> losses;
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) {
    const Json json = Json::parse(line, nullptr, /*allow_exceptions=*/false);
    if (json.is_discarded() || !json.contains("epoch")) continue;
    losses.push_back({json.at("epoch"), to_double(json.at("train_loss")), to_double(json.at("test_loss"))});
  }
  return losses;
}

}  // namespace samples
