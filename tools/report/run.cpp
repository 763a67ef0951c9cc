#include "tools/report/run.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>

#include "tools/report/json.h"

namespace report {
namespace {

namespace ls = lockstep;
using ls::TraceKind;

constexpr const char* kCountersNote = "traffic";
constexpr const char* kLossesNote = "losses";
constexpr const char* kMemoryNote = "memory";

Json note_rows(const Links& links) {
  Json rows = Json::array();
  for (const auto& link : links)
    rows.push_back({link.from, link.to, static_cast<int>(link.phase), link.bytes, link.transfers});
  return rows;
}

Links to_links(const Json& rows) {
  Links links;
  for (const Json& row : rows) {
    const int phase = integer<int>(row.at(2), "phase");
    if (phase < 0 || phase >= ls::parallel::kPhaseCount)
      throw ls::IoError(fmt::format("a link has phase {}, expected 0 to {}", phase, ls::parallel::kPhaseCount - 1));
    links.push_back({integer<int>(row.at(0), "from"), integer<int>(row.at(1), "to"),
                     static_cast<ls::parallel::Phase>(phase), integer<std::int64_t>(row.at(3), "bytes"),
                     integer<std::int64_t>(row.at(4), "transfers")});
  }
  return links;
}

void read_note(const std::string& key, const std::string& value, Run& run) {
  if (key == kModeNote) run.mode = value;
  if (key == kHashNote) run.parameter_hash = value;
  if (key == kGradientsNote) std::from_chars(value.data(), value.data() + value.size(), run.gradient_bytes);
  if (key == kStepNote) std::from_chars(value.data(), value.data() + value.size(), run.step_ns);
  if (key == kCountersNote) {
    const Json json = Json::parse(value);
    run.counters = {integer<std::int64_t>(json.at("steps"), "steps"), to_links(json.at("at_start")),
                    to_links(json.at("in_steps"))};
    run.is_counted = true;
  }
  if (key == kMemoryNote) {
    const Json json = Json::parse(value);
    const auto part = [&](const char* name) { return integer<std::int64_t>(json.at(name), name); };
    run.memory = {part("parameters"), part("gradients"), part("optimizer"), part("units")};
  }
  if (key != kLossesNote) return;
  for (const Json& row : Json::parse(value))
    run.losses.push_back({integer<std::int64_t>(row.at(0), "epoch"), to_double(row.at(1)), to_double(row.at(2))});
}

void read_notes(Run& run) {
  for (const ls::Trace& trace : run.traces) {
    for (const auto& [key, value] : trace.notes) {
      try {
        read_note(key, value, run);
      } catch (const std::exception& error) {  // of the JSON reader, or of to_links
        throw ls::IoError(fmt::format("{}: the note \"{}\" is not what the samples write: {}", run.name, key,
                                      shortened(error.what())));
      }
    }
  }
}

bool has_event(const Run& run, TraceKind kind) {
  return std::ranges::any_of(run.traces, [kind](const ls::Trace& trace) {
    return std::ranges::any_of(trace.events, [kind](const ls::TraceEvent& event) { return event.kind == kind; });
  });
}

std::string mode_of(const Run& run) {
  if (has_event(run, TraceKind::kPlan)) return "sharded";
  if (has_event(run, TraceKind::kReplica)) return "dp";
  if (has_event(run, TraceKind::kBucketReady)) return "ddp";
  return run.traces.size() > 1 || has_event(run, TraceKind::kCollective) ? "ranks" : "single";
}

// "ddp" for "ddp rank 0"; empty for "rank 0".
std::string run_name(const ls::Trace& trace) {
  const std::string rank = fmt::format("rank {}", trace.rank);
  if (!trace.process.ends_with(rank)) return trace.process;
  std::string name = trace.process.substr(0, trace.process.size() - rank.size());
  while (name.ends_with(' ')) name.pop_back();
  return name;
}

}  // namespace

std::pair<std::string, std::string> counters_note(const Counters& counters) {
  const Json json = {{"steps", counters.steps},
                     {"at_start", note_rows(counters.at_start)},
                     {"in_steps", note_rows(counters.in_steps)}};
  return {kCountersNote, json.dump()};
}

std::pair<std::string, std::string> memory_note(const ModelMemory& memory) {
  const Json json = {{"parameters", memory.parameters},
                     {"gradients", memory.gradients},
                     {"optimizer", memory.optimizer},
                     {"units", memory.units}};
  return {kMemoryNote, json.dump()};
}

std::pair<std::string, std::string> losses_note(const std::vector<EpochLoss>& losses) {
  Json rows = Json::array();
  for (const EpochLoss& each : losses) rows.push_back({each.epoch, to_json(each.steps), to_json(each.test)});
  return {kLossesNote, rows.dump()};
}

PlannedBytes planned_in(const ls::Trace& trace) {
  PlannedBytes planned;
  for (const ls::TraceEvent& event : trace.events) {
    if (event.kind != TraceKind::kPlan) continue;
    if (event.name == "planned memory") planned.memory = event.labels.bytes;
    if (event.name == "planned parameters") planned.parameters = event.labels.bytes;
    if (event.name == "planned gradients") planned.gradients = event.labels.bytes;
  }
  return planned;
}

std::vector<Run> runs_of(const std::vector<ls::Trace>& traces, const std::string& name) {
  std::vector<Run> runs;
  for (const ls::Trace& trace : traces) {
    const std::string own = run_name(trace), here = own.empty() ? name : own;
    auto run = std::ranges::find(runs, here, &Run::name);
    if (run == runs.end()) run = runs.insert(run, Run{.name = here});
    run->traces.push_back(trace);
  }
  for (Run& run : runs) {
    read_notes(run);
    if (run.mode.empty()) run.mode = mode_of(run);
  }
  return runs;
}

}  // namespace report
