#include "tools/report/overlap_answers.h"

#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "tools/report/causes.h"
#include "tools/report/messages.h"
#include "tools/report/parts.h"

namespace report {
namespace {

using lockstep::TraceEvent;
using lockstep::TraceKind;

// --- ranks with buckets -----------------------------------------------------------------------------------------------

// The buckets of the first rank in this step, by whether they are reduced before its last gradient is ready.
std::string buckets_text(const StepView& step) {
  const std::vector<LaneEvent>& events = step.lanes[0].events;
  std::int64_t ready = 0, all = 0, hidden = 0;
  for (const LaneEvent& each : events)
    if (each.event.kind == TraceKind::kBucketReady) ready = std::max(ready, each.event.begin);
  std::vector<std::string> early, late;
  for (const LaneEvent& each : events) {
    const TraceEvent& event = each.event;
    if (event.kind != TraceKind::kBucketDone) continue;
    const bool is_early = event.begin <= ready;
    (is_early ? early : late).push_back(fmt::format("bucket {} ({})", event.labels.id, size_text(event.labels.bytes)));
    all += event.labels.bytes;
    hidden += is_early ? event.labels.bytes : 0;
  }
  if (early.empty())
    return late.size() == 1 ? "Nothing: there is one bucket, which is complete when the last gradient is ready."
                            : "Nothing: no bucket is reduced before the last gradient is ready.";
  std::string text = fmt::format("Backward overlaps the all-reduce of {}: {} of the bytes.", listed(early),
                                 percent(ratio(hidden, all)));
  if (!late.empty()) text += fmt::format(" That of {} ends after the last gradient is ready.", listed(late));
  return text;
}

// --- ranks whose collectives have no buckets --------------------------------------------------------------------------

// The time in which a collective is in flight and the rank does not wait.
std::optional<std::string> flights_text(const StepView& step) {
  std::int64_t flight = 0, waited = 0;
  for (const Lane& lane : step.lanes) {
    std::int64_t done = lane.events.empty() ? 0 : lane.events.front().event.begin;
    for (const LaneEvent& each : lane.events) {
      const TraceEvent& event = each.event;
      if (is_message(event)) return std::nullopt;
      if (event.kind == TraceKind::kWait) waited += event.end - event.begin;
      if (event.kind != TraceKind::kCollective || event.end <= done) continue;
      flight += event.end - std::max(event.begin, done);
      done = event.end;
    }
  }
  if (flight == 0) return std::nullopt;
  const double share = std::max(0.0, 1 - ratio(waited, flight));
  if (share < kClear) return "Nothing: the ranks wait while collectives are in flight.";
  return fmt::format("For {} of the time in which a collective is in flight, the rank does not wait for it.",
                     percent(share));
}

std::optional<std::string> ranks_text(const TracedRun& traced, const StepCosts& costs) {
  const StepView& step = median_step(traced.steps);
  const bool has_buckets = std::ranges::any_of(
      step.lanes[0].events, [](const LaneEvent& each) { return each.event.kind == TraceKind::kBucketDone; });
  const std::optional<std::string> text = has_buckets ? buckets_text(step) : flights_text(step);
  if (!text) return std::nullopt;
  return fmt::format(
      "{} Exposed communication, in which a rank computes nothing, is {} of the median step (on average).", *text,
      in_unit_of(costs.step, costs.communication));
}

// --- DataParallel -----------------------------------------------------------------------------------------------------

// A copy's time in which another device is in forward or backward, and which device does which of them the longest.
struct Hidden {
  std::int64_t ns = 0;
  std::string behind = {};  // "cpu:0's forward"
};

Hidden hidden_part(const StepView& step, const Lane& lane, const TraceEvent& copy) {
  std::vector<std::pair<std::int64_t, std::int64_t>> times;
  Hidden hidden;
  std::int64_t longest = 0;
  for (const Lane& other : step.lanes) {
    for (const LaneEvent& each : other.events) {
      const TraceEvent& event = each.event;
      const bool is_computing = event.kind == TraceKind::kForward || event.kind == TraceKind::kBackward;
      const std::int64_t begin = std::max(event.begin, copy.begin), end = std::min(event.end, copy.end);
      if (&other == &lane || !is_computing || begin >= end) continue;
      times.emplace_back(begin, end);
      if (end - begin <= longest) continue;
      longest = end - begin;
      hidden.behind = other.name + (event.kind == TraceKind::kForward ? "'s forward" : "'s backward");
    }
  }
  std::ranges::sort(times);
  std::int64_t done = copy.begin;
  for (const auto& [begin, end] : times) {
    hidden.ns += std::max<std::int64_t>(0, end - std::max(begin, done));
    done = std::max(done, end);
  }
  return hidden;
}

std::optional<std::string> copies_text(const StepView& step, std::int64_t length) {
  std::vector<Part> copies, hidden;  // copies by name; of those, the times behind a device's forward or backward
  std::int64_t all = 0, overlapped = 0;
  const auto add = [](std::vector<Part>& parts, const std::string& text, std::int64_t ns) {
    const auto at = std::ranges::find(parts, text, &Part::text);
    (at == parts.end() ? parts.emplace_back(Part{0, text}) : *at).size += ns;
  };
  for (const Lane& lane : step.lanes) {
    for (const LaneEvent& each : lane.events) {
      const TraceEvent& copy = each.event;
      if (copy.kind != TraceKind::kCopy) continue;
      const Hidden behind = hidden_part(step, lane, copy);
      add(copies, copy.name, copy.end - copy.begin);
      if (behind.ns > 0) add(hidden, copy.name + " during " + behind.behind, behind.ns);
      all += copy.end - copy.begin;
      overlapped += behind.ns;
    }
  }
  if (all == 0) return std::nullopt;
  for (std::vector<Part>* const parts : {&copies, &hidden}) {
    std::erase_if(*parts, [&](const Part& part) { return in_unit_of(length, part.size) == in_unit_of(length, 0); });
    for (Part& part : *parts) part.text = fmt::format("{} for {}", in_unit_of(length, part.size), part.text);
  }
  const std::vector<std::string> behind = largest_parts(hidden, 0);
  return fmt::format(
      "Copies between devices take {} of the median step: {}. {} Gradients are copied and added up after the last "
      "device's backward.",
      in_unit_of(length, all), listed(largest_parts(copies, 0)),
      behind.empty() ? "No other device is in forward or backward meanwhile."
                     : fmt::format("{} of that time overlaps with another device's forward or backward: {}.",
                                   percent(ratio(overlapped, all)), listed(behind)));
}

}  // namespace

std::optional<Answer> overlap_answer(const TracedRun& traced, const StepCosts& costs) {
  if (costs.lanes < 2) return std::nullopt;
  std::optional<std::string> text =
      traced.run.has_ranks() ? ranks_text(traced, costs) : copies_text(median_step(traced.steps), costs.step);
  if (!text) return std::nullopt;
  return Answer{fmt::format("What overlaps in {}?", traced.run.name), std::move(*text)};
}

}  // namespace report
