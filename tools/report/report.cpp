#include "tools/report/report.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <optional>
#include <string>
#include <string_view>

#include "lockstep/base/file_internal.h"
#include "lockstep/parallel/schedule/schedule_internal.h"
#include "tools/report/answers.h"
#include "tools/report/causes.h"
#include "tools/report/json.h"
#include "tools/report/lanes.h"
#include "tools/report/pipeline.h"

namespace report {

std::string report_page();  // report.html with style and script; made by tools/report/page.cmake

namespace {

namespace ls = lockstep;
namespace par = lockstep::parallel;
constexpr std::string_view kDataMark = "{{data}}";

// Stores each name once; events refer to a name by number.
class Names {
 public:
  std::size_t number(const std::string& name) {
    const auto at = std::ranges::find(names_, name);
    if (at == names_.end()) return names_.push_back(name), names_.size() - 1;
    return static_cast<std::size_t>(at - names_.begin());
  }
  Json json() const { return names_; }

 private:
  std::vector<std::string> names_;
};

Json to_json(const Shares& shares) { return {shares.compute, shares.communication, shares.waiting, shares.other}; }

// A gather through shared memory is a copy from all other ranks.
std::string shown_name(const ls::TraceEvent& event) {
  const bool is_gather = event.kind == ls::TraceKind::kCopy && event.labels.to < 0 &&
                         event.labels.phase == static_cast<int>(par::Phase::kParameters);
  return is_gather ? "all_gather " + event.name : event.name;
}

// Trailing values of -1 are omitted.
Json to_json(const LaneEvent& each, std::int64_t zero, Names& names) {
  const ls::TraceEvent& event = each.event;
  std::vector<std::int64_t> numbers = {static_cast<std::int64_t>(event.kind),
                                       static_cast<std::int64_t>(names.number(shown_name(event))),
                                       event.begin - zero,
                                       event.end - event.begin,
                                       each.depth,
                                       event.labels.bytes,
                                       event.labels.id,
                                       event.labels.from,
                                       event.labels.to};
  while (numbers.back() == -1) numbers.pop_back();
  return numbers;
}

// The bytes in memory with their times, and the peak: the largest value, or the largest peak since the program's reset.
void add_memory(const Lane& lane, std::int64_t zero, Json& json) {
  std::int64_t peak = 0;
  Json samples = Json::array();
  for (const ls::TraceEvent& event : lane.memory) {
    peak = std::max(peak, event.labels.bytes);
    if (event.name == "memory") samples.push_back({event.begin - zero, event.labels.bytes});
  }
  json["memory"] = std::move(samples);
  json["peak"] = peak;
}

Json to_json(const StepView& step, Names& names) {
  Json lanes = Json::array(), arrivals = Json::array();
  for (const Lane& lane : step.lanes) {
    Json events = Json::array();
    for (const LaneEvent& each : lane.events) events.push_back(to_json(each, step.begin, names));
    lanes.push_back({{"name", lane.name}, {"shares", to_json(lane.shares)}, {"events", std::move(events)}});
    if (!lane.memory.empty()) add_memory(lane, step.begin, lanes.back());
  }
  for (const Arrival& arrival : step.arrivals)
    arrivals.push_back({{"name", arrival.name},
                        {"id", arrival.id},
                        {"last", arrival.last},
                        {"late", arrival.late},
                        {"certain", arrival.is_certain}});
  const ls::parallel::CommunicationOverlap& overlap = step.overlap;
  return {{"number", step.number},
          {"ns", step.end - step.begin},
          {"lanes", std::move(lanes)},
          {"arrivals", arrivals},
          {"overlap", {overlap.early_bytes, overlap.bytes, overlap.early_seconds, overlap.seconds}}};
}

Json rows_of(const Links& links) {
  Json rows = Json::array();
  for (const auto& link : links)
    rows.push_back({{"from", link.from},
                    {"to", link.to},
                    {"phase", ls::parallel::name(link.phase)},
                    {"bytes", link.bytes},
                    {"transfers", link.transfers}});
  return rows;
}

// The bytes of the steps' events: a copy names both ends, a collective only the rank that sends, unless there are two.
Counters counted_in(const std::vector<StepView>& steps) {
  ls::parallel::TrafficStats traffic;
  for (const StepView& step : steps) {
    for (const Lane& lane : step.lanes) {
      for (const LaneEvent& each : lane.events) {
        const ls::TraceLabels& labels = each.event.labels;
        const bool is_collective = each.event.kind == ls::TraceKind::kCollective;
        if (labels.bytes <= 0 || labels.from < 0 || !(is_collective || each.event.kind == ls::TraceKind::kCopy))
          continue;
        const int to = labels.to >= 0 ? labels.to : step.lanes.size() == 2 ? 1 - labels.from : -1;
        const bool has_phase = labels.phase >= 0 && labels.phase < ls::parallel::kPhaseCount;
        traffic.add(labels.from, to,
                    has_phase ? static_cast<ls::parallel::Phase>(labels.phase) : ls::parallel::Phase::kOther,
                    labels.bytes);
      }
    }
  }
  return {.steps = static_cast<std::int64_t>(steps.size()), .in_steps = traffic.links()};
}

Json to_json(const par::ScheduleAction& action, double begin, double end) {
  return {static_cast<int>(action.kind), action.stage, action.micro_batch, std::llround(begin),
          std::llround(end - begin)};
}

// Planned: the run's schedule with its median times. Measured: the step of median length.
Json to_json(const PipelineProfile& profile, const std::vector<ls::Trace>& traces) {
  const par::Timeline planned = par::simulate(profile.table, profile.stages, profile.link);
  const PipelineStepTimes& step = profile.median_step();
  Json ranks = Json::array();
  for (std::size_t rank = 0; rank < step.ranks.size(); ++rank) {
    Json lanes[2] = {Json::array(), Json::array()};
    for (const auto& [begin, end, action] : planned.ranks[rank].actions)
      lanes[0].push_back(to_json(action, begin, end));
    const PipelineRankStep& own = step.ranks[rank];
    for (std::size_t i = 0; i < own.actions.size(); ++i) {
      if (par::is_computing(own.actions[i].kind))
        lanes[1].push_back(to_json(own.actions[i], static_cast<double>(own.events[i].begin - step.begin),
                                   static_cast<double>(own.events[i].end - step.begin)));
    }
    ranks.push_back({{"name", fmt::format("rank {}", traces[own.trace].rank)},
                     {"planned_idle", planned.ranks[rank].idle},
                     {"measured_idle", step.idle(rank)},
                     {"planned", std::move(lanes[0])},
                     {"measured", std::move(lanes[1])}});
  }
  return {{"planned_ns", std::llround(planned.seconds)},
          {"planned_idle", planned.idle},
          {"measured_ns", step.end - step.begin},
          {"measured_idle", step.idle()},
          {"ranks", std::move(ranks)}};
}

Json to_json(const ModelMemory& memory) {
  if (!memory.is_known()) return nullptr;
  return {memory.parameters, memory.gradients, memory.optimizer, memory.units};
}

Json to_json(const TracedRun& traced) {
  const auto& [run, steps] = traced;
  const Counters counters = run.is_counted ? run.counters : counted_in(steps);
  Names names;
  Shares shares;
  Json step_list = Json::array(), clocks = Json::array(), losses = Json::array(), planned = Json::array();
  for (const StepView& step : steps) {
    for (const Lane& lane : step.lanes) shares += lane.shares;
    step_list.push_back(to_json(step, names));
  }
  for (const ls::Trace& trace : run.traces) {
    clocks.push_back({{"rank", trace.rank}, {"error", trace.clock_error}, {"dropped", trace.dropped}});
    const PlannedBytes plan = planned_in(trace);
    if (plan.memory >= 0) planned.push_back({plan.memory, plan.parameters, plan.gradients});
  }
  for (const EpochLoss& loss : run.losses)
    losses.push_back({loss.epoch, report::to_json(loss.steps), report::to_json(loss.test)});
  const std::optional<PipelineProfile> pipeline = pipeline_profile(run.traces);
  return {{"name", run.name},
          {"mode", run.mode},
          {"verdict", verdict(run, steps)},
          {"hash", run.parameter_hash},
          {"gradient_bytes", run.gradient_bytes},
          {"memory", to_json(run.memory)},
          {"shares", to_json(shares)},
          {"counted", run.is_counted},
          {"step_count", counters.steps},
          {"at_start", rows_of(counters.at_start)},
          {"links", rows_of(counters.in_steps)},
          {"clocks", std::move(clocks)},
          {"planned", std::move(planned)},
          {"pipeline", pipeline ? to_json(*pipeline, run.traces) : Json()},
          {"losses", std::move(losses)},
          {"steps", std::move(step_list)},
          {"names", names.json()}};
}

// JSON for an HTML script element: escapes <, so that no string can close the element.
std::string for_html(const Json& json) {
  const std::string text = json.dump(-1, ' ', /*ensure_ascii=*/true, Json::error_handler_t::replace);
  std::string out;
  for (const char c : text) {
    if (c == '<')
      out += "\\u003c";
    else
      out += c;
  }
  return out;
}

}  // namespace

std::vector<TracedRun> traced(const std::vector<Run>& runs) {
  std::vector<TracedRun> out;
  for (const Run& run : runs) out.push_back({run, last_steps(run, kShownSteps)});
  return out;
}

std::string page_of(const Report& report) {
  Json kinds = Json::array(), modes = Json::array(), answered = Json::array();
  for (int kind = 0; kind < ls::kTraceKindCount; ++kind) kinds.push_back(name(static_cast<ls::TraceKind>(kind)));
  const std::vector<TracedRun> runs = traced(report.runs);
  for (const TracedRun& run : runs) modes.push_back(to_json(run));
  for (const Answer& answer : answers(runs)) answered.push_back({answer.question, answer.text});
  const Json data = {{"program", report.title},
                     {"command", report.command},
                     {"kinds", std::move(kinds)},
                     {"answers", std::move(answered)},
                     {"modes", std::move(modes)}};
  std::string page = report_page();
  return page.replace(page.find(kDataMark), kDataMark.size(), for_html(data));
}

void write_report(const std::string& path, const Report& report) {
  ls::AtomicFile file(path);
  file.write(page_of(report));
  file.commit();
}

}  // namespace report
