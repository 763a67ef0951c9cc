#include "support/report.h"

#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <string_view>

#include "lockstep/tensor/file_internal.h"
#include "support/json.h"
#include "support/lanes.h"

namespace samples {

extern const std::string_view kReportPage;  // report.html with style and script; made by samples/report.cmake

namespace {

namespace ls = lockstep;
using Json = nlohmann::ordered_json;
constexpr std::size_t kSteps = 20;
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

// Trailing values of -1 are omitted.
Json to_json(const LaneEvent& each, std::int64_t zero, Names& names) {
  const ls::TraceEvent& event = each.event;
  std::vector<std::int64_t> numbers = {static_cast<std::int64_t>(event.kind),
                                       static_cast<std::int64_t>(names.number(event.name)),
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

Json to_json(const StepView& step, Names& names) {
  Json lanes = Json::array(), arrivals = Json::array();
  for (const Lane& lane : step.lanes) {
    Json events = Json::array();
    for (const LaneEvent& each : lane.events) events.push_back(to_json(each, step.begin, names));
    lanes.push_back({{"name", lane.name}, {"shares", to_json(lane.shares)}, {"events", std::move(events)}});
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

Json rows_of(const std::vector<ls::parallel::LinkTraffic>& links) {
  Json rows = Json::array();
  for (const auto& link : links)
    rows.push_back({{"from", link.from},
                    {"to", link.to},
                    {"phase", ls::parallel::name(link.phase)},
                    {"bytes", link.bytes},
                    {"transfers", link.transfers}});
  return rows;
}

// The part of the step that limits its speed.
std::string verdict(const Shares& shares, const std::vector<StepView>& steps) {
  const auto all = static_cast<double>(std::max<std::int64_t>(shares.all(), 1));
  const auto percent = [all](std::int64_t ns) { return 100 * static_cast<double>(ns) / all; };
  std::string text = fmt::format(
      "compute {:.0f} %, communication {:.0f} %, waiting {:.0f} %, other (data, bookkeeping) {:.0f} %: ",
      percent(shares.compute), percent(shares.communication), percent(shares.waiting), percent(shares.other));
  const std::int64_t most = std::max({shares.compute, shares.communication, shares.waiting, shares.other});
  if (most == shares.compute) return text + "the step is limited by computing";
  if (most == shares.communication) return text + "the step is limited by moving bytes";
  if (most == shares.other) return text + "the step is limited by what surrounds it: loading data, bookkeeping";
  std::vector<int> last(256);
  int certain = 0;
  for (const StepView& step : steps) {
    for (const Arrival& arrival : step.arrivals) {
      if (!arrival.is_certain) continue;
      ++certain;
      ++last[static_cast<std::size_t>(std::clamp(arrival.last, 0, 255))];
    }
  }
  text += "the step is limited by waiting";
  if (certain == 0) return text;
  const auto slowest = std::ranges::max_element(last);
  return text + fmt::format("; rank {} came last {} of {} times", slowest - last.begin(), *slowest, certain);
}

Json to_json(const Timeline& timeline) {
  const std::vector<StepView> steps = last_steps(timeline, kSteps);
  Names names;
  Shares shares;
  Json step_list = Json::array(), clocks = Json::array(), losses = Json::array();
  for (const StepView& step : steps) {
    for (const Lane& lane : step.lanes) shares += lane.shares;
    step_list.push_back(to_json(step, names));
  }
  for (const ls::Trace& trace : timeline.traces)
    clocks.push_back({{"rank", trace.rank}, {"error", trace.clock_error}, {"dropped", trace.dropped}});
  for (const EpochLoss& loss : timeline.losses)
    losses.push_back({loss.epoch, samples::to_json(loss.train), samples::to_json(loss.test)});
  return {{"mode", timeline.mode},
          {"verdict", verdict(shares, steps)},
          {"shares", to_json(shares)},
          {"step_count", timeline.steps},
          {"at_start", rows_of(timeline.at_start)},
          {"links", rows_of(timeline.in_steps)},
          {"clocks", std::move(clocks)},
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

void write_report(const Options& options, const std::vector<Timeline>& timelines) {
  Json kinds = Json::array(), modes = Json::array();
  for (int kind = 0; kind < ls::kTraceKindCount; ++kind) kinds.push_back(name(static_cast<ls::TraceKind>(kind)));
  for (const Timeline& timeline : timelines) modes.push_back(to_json(timeline));
  const Json data = {{"program", options.program}, {"command", options.command},
                     {"batch", options.batch},     {"micro_batches", options.micro_batches},
                     {"nproc", options.nproc},     {"loss", options.loss},
                     {"kinds", std::move(kinds)},  {"modes", std::move(modes)}};
  const std::size_t at = kReportPage.find(kDataMark);
  ls::AtomicFile file(options.report);
  file.write(kReportPage.substr(0, at));
  file.write(for_html(data));
  file.write(kReportPage.substr(at + kDataMark.size()));
  file.commit();
}

}  // namespace samples
