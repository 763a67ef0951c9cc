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

// "bucket 0 (458.8 kB) and bucket 2 (1.2 MB)" for the buckets of a rank that are, or are not, done by `ready`.
std::string buckets_done(const std::vector<LaneEvent>& events, std::int64_t ready, bool are_early) {
  std::vector<std::string> texts;
  for (const LaneEvent& each : events) {
    const TraceEvent& event = each.event;
    if (event.kind == TraceKind::kBucketDone && (event.begin <= ready) == are_early)
      texts.push_back(fmt::format("bucket {} ({})", event.labels.id, size_text(event.labels.bytes)));
  }
  return listed(texts);
}

std::string buckets_text(const TracedRun& traced, const lockstep::parallel::CommunicationOverlap& sum) {
  const std::vector<LaneEvent>& events = median_step(traced.steps).lanes[0].events;
  std::int64_t ready = 0;
  for (const LaneEvent& each : events)
    if (each.event.kind == TraceKind::kBucketReady) ready = std::max(ready, each.event.begin);
  const std::string early = buckets_done(events, ready, true), late = buckets_done(events, ready, false);
  if (sum.early_bytes == 0)
    return late.find(" and ") == std::string::npos
               ? "Nothing: there is one bucket, which is complete when the last gradient is ready."
               : "Nothing: no bucket is reduced before the last gradient is ready.";
  std::int64_t lanes = 0;
  for (const StepView& step : traced.steps) lanes += static_cast<std::int64_t>(step.lanes.size());
  const auto mean = static_cast<std::int64_t>(1e9 * sum.seconds / static_cast<double>(lanes));
  std::string text = fmt::format(
      "All-reduces are in flight for {} of a step (mean of ranks and steps; from a bucket's launch to its end, so "
      "waits "
      "for other ranks are included). {} of that time, and {} of the bytes, belong to buckets that end before the last "
      "gradient is ready, so backward hides them",
      time_text(mean), percent(sum.early_seconds / sum.seconds), percent(ratio(sum.early_bytes, sum.bytes)));
  if (!early.empty() && !late.empty()) text += fmt::format(": {}, but not {}", early, late);
  return text + ".";
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
  lockstep::parallel::CommunicationOverlap sum;
  for (const StepView& step : traced.steps) {
    sum.seconds += step.overlap.seconds, sum.early_seconds += step.overlap.early_seconds;
    sum.bytes += step.overlap.bytes, sum.early_bytes += step.overlap.early_bytes;
  }
  const std::optional<std::string> text =
      sum.bytes > 0 ? buckets_text(traced, sum) : flights_text(median_step(traced.steps));
  if (!text) return std::nullopt;
  return fmt::format(
      "{} Exposed communication, which nothing overlaps, takes a rank (on average) {} of the median step.", *text,
      in_unit_of(costs.step, costs.communication));
}

// --- DataParallel -----------------------------------------------------------------------------------------------------

// How long, during `copy`, any device other than that of `lane` is in forward or backward.
std::int64_t computing_elsewhere(const StepView& step, const Lane& lane, const TraceEvent& copy) {
  std::vector<std::pair<std::int64_t, std::int64_t>> times;
  for (const Lane& other : step.lanes) {
    for (const LaneEvent& each : other.events) {
      const TraceEvent& event = each.event;
      const bool is_computing = event.kind == TraceKind::kForward || event.kind == TraceKind::kBackward;
      if (&other != &lane && is_computing && event.begin < copy.end && event.end > copy.begin)
        times.emplace_back(std::max(event.begin, copy.begin), std::min(event.end, copy.end));
    }
  }
  std::ranges::sort(times);
  std::int64_t sum = 0, done = copy.begin;
  for (const auto& [begin, end] : times) {
    sum += std::max<std::int64_t>(0, end - std::max(begin, done));
    done = std::max(done, end);
  }
  return sum;
}

std::optional<std::string> copies_text(const StepView& step, std::int64_t length) {
  std::vector<Part> copies, hidden;  // by name
  std::int64_t all = 0, overlapped = 0;
  for (const Lane& lane : step.lanes) {
    for (const LaneEvent& each : lane.events) {
      const TraceEvent& copy = each.event;
      if (copy.kind != TraceKind::kCopy) continue;
      auto at = std::ranges::find(copies, copy.name, &Part::text);
      if (at == copies.end()) {
        at = copies.insert(at, {0, copy.name});
        hidden.push_back({0, copy.name});
      }
      const std::int64_t behind = computing_elsewhere(step, lane, copy);
      at->size += copy.end - copy.begin;
      hidden[static_cast<std::size_t>(at - copies.begin())].size += behind;
      all += copy.end - copy.begin;
      overlapped += behind;
    }
  }
  if (all == 0) return std::nullopt;
  for (std::vector<Part>* const parts : {&copies, &hidden})
    for (Part& part : *parts) part.text = fmt::format("{} for {}", in_unit_of(length, part.size), part.text);
  const std::vector<std::string> behind = largest_parts(hidden, overlapped);
  return fmt::format(
      "Copies between devices take {} of the median step: {}. {} Gradients are copied and added up when the last "
      "device's "
      "layers have run backward, at the end of cpu:0's bar \"backward\", so nothing overlaps that.",
      in_unit_of(length, all), listed(largest_parts(copies, all)),
      behind.empty() ? "Meanwhile no other device is in forward or backward."
                     : fmt::format("During {} of it, another device is in forward or backward: {}.",
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
