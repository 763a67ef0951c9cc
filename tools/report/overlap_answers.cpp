#include "tools/report/overlap_answers.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <map>
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

constexpr std::size_t kBuckets = 4;  // whose times are listed
constexpr double kSmallest = 0.02;   // of all copies: shorter ones are not listed

// --- ranks with buckets -----------------------------------------------------------------------------------------------

// The all-reduces that are done before the last gradient of their step, in all traced steps and ranks.
std::string early_text(const std::vector<StepView>& steps) {
  lockstep::parallel::CommunicationOverlap all;
  for (const StepView& step : steps) add(all, step.overlap);
  if (all.early_bytes == 0)
    return "Nothing: in no traced step is an all-reduce done before the last gradient is ready.";
  return fmt::format(
      "Backward overlaps with all-reduces: over all traced steps and ranks, {} of the bytes are all-reduced before the "
      "rank's last gradient is ready.",
      percent(all.byte_share()));
}

// A rank's buckets in a step.
struct Buckets {
  std::int64_t ready = 0;                                               // when its last gradient is ready
  std::map<std::int64_t, std::pair<TraceEvent, TraceEvent>> by_number;  // launched and done

  explicit Buckets(const Lane& lane) {
    for (const LaneEvent& each : lane.events) {
      const TraceEvent& event = each.event;
      if (event.kind == TraceKind::kBucketReady) ready = std::max(ready, event.begin);
      if (event.kind == TraceKind::kBucketLaunched) by_number[event.labels.id].first = event;
      if (event.kind == TraceKind::kBucketDone) by_number[event.labels.id].second = event;
    }
  }
  std::ptrdiff_t early() const {
    return std::ranges::count_if(by_number, [&](const auto& each) { return each.second.second.begin <= ready; });
  }
};

// When the buckets are launched and done in this step, relative to the last gradient: of the rank with most that are done
// before it.
std::string buckets_text(const StepView& step, std::int64_t length) {
  const auto lane = std::ranges::max_element(step.lanes, {}, [](const Lane& each) { return Buckets(each).early(); });
  const Buckets of_rank(*lane);
  const std::int64_t ready = of_rank.ready;
  const auto& buckets = of_rank.by_number;
  const auto relative = [&](std::int64_t time) {
    return fmt::format("{} {}", time_text(std::abs(time - ready)), time <= ready ? "before" : "after");
  };
  std::vector<std::string> texts;
  for (const auto& [number, times] : buckets) {
    if (texts.size() == kBuckets) break;
    texts.push_back(fmt::format("bucket {} ({}) is launched {} it and done {}", number,
                                size_text(times.second.labels.bytes), relative(times.first.begin),
                                relative(times.second.begin)));
  }
  if (buckets.size() > kBuckets) texts.push_back(fmt::format("{} more follow", buckets.size() - kBuckets));
  return fmt::format("In the median step, where {}'s last gradient is ready after {}: {}.{}", lane->name,
                     in_unit_of(length, ready - step.begin), listed(texts),
                     of_rank.early() > 0
                         ? " A bucket that is launched during backward takes longer, as the ranks compute meanwhile."
                         : "");
}

// The answer for gradients that are reduced in buckets.
std::string bucketed_text(const TracedRun& traced, std::int64_t length) {
  const StepView& step = median_step(traced.steps);
  const auto count = std::ranges::count(step.lanes[0].events, TraceKind::kBucketDone,
                                        [](const LaneEvent& each) { return each.event.kind; });
  if (count == 1) return "Nothing: there is one bucket, which is complete when the last gradient is ready.";
  return early_text(traced.steps) + " " + buckets_text(step, length);
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
  const std::optional<std::string> text = has_buckets ? bucketed_text(traced, costs.step) : flights_text(step);
  if (!text) return std::nullopt;
  return fmt::format(
      "{} Exposed communication, in which a rank computes nothing, is {} of the median step (mean of the ranks).",
      *text, in_unit_of(costs.step, costs.communication));
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
    std::erase_if(*parts, [&](const Part& part) {
      return ratio(part.size, all) < kSmallest || in_unit_of(length, part.size) == in_unit_of(length, 0);
    });
    for (Part& part : *parts) part.text = fmt::format("{} for {}", in_unit_of(length, part.size), part.text);
  }
  const std::vector<std::string> behind = largest_parts(hidden, 0);
  return fmt::format(
      "Copies between devices take, on all devices together, {} in the median step: {}. {} Gradients are copied and "
      "added up after the last "
      "device's backward.",
      in_unit_of(length, all), listed(largest_parts(copies, 0)),
      behind.empty() ? "No other device is in forward or backward meanwhile."
                     : fmt::format("{} of that time overlaps with another device's forward or backward: mainly {}.",
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
