#include "tools/report/causes.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <functional>
#include <map>
#include <utility>

#include "lockstep/parallel/schedule/schedule_internal.h"
#include "tools/report/costs.h"
#include "tools/report/messages.h"

namespace report {
namespace {

namespace ls = lockstep;
using ls::TraceEvent;
using ls::TraceKind;

class Causes {
 public:
  void add(const Lane& lane, const std::string& what, std::int64_t ns, bool is_waiting,
           std::optional<std::int64_t> later = {}) {
    if (ns <= 0) return;
    Cause& cause = by_text_[{lane.name, what}];
    cause.lane = lane.name;
    cause.what = what;
    cause.ns += ns;
    cause.is_waiting = is_waiting;
    if (later) cause.later = cause.later.value_or(0) + *later;
  }

  std::vector<Cause> longest_first() const {
    std::vector<Cause> causes;
    for (const auto& entry : by_text_) causes.push_back(entry.second);
    std::ranges::stable_sort(causes, std::ranges::greater(), &Cause::ns);
    return causes;
  }

 private:
  std::map<std::pair<std::string, std::string>, Cause> by_text_;
};

// The first forward or backward of a lane from `begin` to `end`; null if there is none.
const TraceEvent* computing(const Lane& lane, std::int64_t begin, std::int64_t end) {
  for (const LaneEvent& each : lane.events) {
    const TraceEvent& event = each.event;
    const bool is_computing = event.kind == TraceKind::kForward || event.kind == TraceKind::kBackward;
    if (is_computing && event.begin >= begin && event.end <= end) return &event;
  }
  return nullptr;
}

// Adds a wait for the end of a replica's work.
void add_wait_for(const Lane& lane, const TraceEvent& wait, const Lane& replica, const TraceEvent& work,
                  Causes& causes) {
  const TraceEvent* const theirs = computing(replica, work.begin, work.end);
  if (!theirs) return causes.add(lane, replica.name + "'s part of the sums", wait.end - wait.begin, true);
  std::int64_t later = 0;
  for (const TraceEvent& own : lane.at_work) {
    if (own.end > wait.end || own.end < work.begin) continue;
    if (const TraceEvent* const ours = computing(lane, own.begin, own.end); ours && ours->kind == theirs->kind)
      later = std::max<std::int64_t>(0, theirs->begin - ours->begin);
  }
  causes.add(lane, replica.name + (theirs->kind == TraceKind::kForward ? "'s forward" : "'s backward"),
             wait.end - wait.begin, true, later);
}

// DataParallel's first device waits for the replica that ends last before the wait does. Waits of the other devices have
// the name of their cause.
void add_wait_of_replica(const Lane& lane, const TraceEvent& wait, const StepView& step, Causes& causes) {
  if (lane.is_replica) return causes.add(lane, wait.name, wait.end - wait.begin, true);
  const Lane* last = nullptr;
  const TraceEvent* work = nullptr;
  for (const Lane& other : step.lanes) {
    if (&other == &lane) continue;
    for (const TraceEvent& each : other.at_work) {
      const bool is_awaited = each.begin < wait.end && each.end >= wait.begin;
      if (is_awaited && (!work || each.end > work->end)) last = &other, work = &each;
    }
  }
  if (last) add_wait_for(lane, wait, *last, *work, causes);
}

// "all_reduce of bucket 1 (fc.bias)" for the collective of a bucket, which is launched when the bucket is.
std::string collective_text(const Lane& lane, const TraceEvent& collective) {
  if (collective.labels.phase != static_cast<int>(lockstep::parallel::Phase::kGradients)) return collective.name;
  const TraceEvent* bucket = nullptr;
  for (const LaneEvent& each : lane.events) {
    if (each.event.kind != TraceKind::kBucketLaunched) continue;
    const auto distance = [&](const TraceEvent& event) { return std::abs(event.begin - collective.begin); };
    if (!bucket || distance(each.event) < distance(*bucket)) bucket = &each.event;
  }
  return bucket ? fmt::format("{} of bucket {} ({})", collective.name, bucket->labels.id, bucket->name)
                : collective.name;
}

// The collectives that must be done before the wait ends, in the order of their launch: a group runs one after another.
// The last is that of the wait.
std::vector<const TraceEvent*> awaited(const Lane& lane, const TraceEvent& wait) {
  std::vector<const TraceEvent*> collectives;
  for (const LaneEvent& each : lane.events) {
    const TraceEvent& event = each.event;
    if (event.kind != TraceKind::kCollective || event.labels.group != wait.labels.group || is_message(event)) continue;
    if (event.labels.id <= wait.labels.id && event.end > wait.begin) collectives.push_back(&event);
  }
  std::ranges::stable_sort(collectives, {}, [](const TraceEvent* event) { return event->labels.id; });
  return collectives;
}

// Until the other rank launches its part of a message the wait is for that rank, afterwards for the message.
void add_wait_for_message(const Lane& lane, const LaneEvent& each, Causes& causes) {
  const TraceEvent& wait = each.event;
  std::string other = fmt::format("rank {}", wait.labels.to), what = wait.name;
  bool is_received = what.starts_with("recv");
  what.erase(0, what.find(' ') == std::string::npos ? what.size() : what.find(' ') + 1);
  if (what.empty()) what = "a message";
  if (const auto message = stage_message(wait.name)) {
    const auto channel = lockstep::parallel::StageChannel::of(*message);
    is_received = !channel.is_send;
    other = fmt::format("stage {} on {}", is_received ? channel.sender() : channel.receiver, other);
    what = channel.is_backward ? "gradients" : "outputs";
  }
  causes.add(lane, fmt::format("{} to {} {}", other, is_received ? "send" : "receive", what),
             each.launched - wait.begin, true);
  causes.add(
      lane,
      is_received ? fmt::format("{} that {} has sent", what, other) : fmt::format("{} on the way to {}", what, other),
      wait.end - each.launched, false);
}

// By how much a rank's first event in the step is later than that of `lane`.
std::int64_t begins_later(const StepView& step, const Lane& lane, int rank) {
  const auto other = std::ranges::find(step.lanes, fmt::format("rank {}", rank), &Lane::name);
  if (other == step.lanes.end() || other->events.empty() || lane.events.empty()) return 0;
  return std::max<std::int64_t>(0, other->events.front().event.begin - lane.events.front().event.begin);
}

// Until the last rank launches a collective the wait is for that rank, afterwards for the largest collective's bytes.
void add_wait_for_collective(const Lane& lane, const LaneEvent& waiting, const StepView& step, Causes& causes) {
  const TraceEvent& wait = waiting.event;
  const TraceEvent* largest = nullptr;
  std::int64_t from = wait.begin;
  for (const TraceEvent* each : awaited(lane, wait)) {
    if (!largest || each->labels.bytes > largest->labels.bytes) largest = each;
    for (const Arrival& arrival : step.arrivals) {
      if (arrival.id != each->labels.id || arrival.group != each->labels.group || !arrival.is_certain) continue;
      const std::int64_t until = std::clamp(arrival.at, from, std::max(from, wait.end));
      causes.add(lane, fmt::format("rank {}, the last to launch the {}", arrival.last, collective_text(lane, *each)),
                 until - from, true, begins_later(step, lane, arrival.last));
      from = until;
    }
  }
  const std::string what = largest ? collective_text(lane, *largest) : wait.name;
  causes.add(lane, fmt::format("the {}, which all ranks have launched", what),
             wait.end - std::max(from, waiting.launched), false);
}

Shares sum_of(const std::vector<StepView>& steps) {
  Shares sum;
  for (const StepView& step : steps) {
    for (const Lane& lane : step.lanes) sum += lane.shares;
  }
  return sum;
}

// Splitting cannot pay if one device would do the arithmetic of all in less time than the step takes.
std::string lengths_text(const Shares& shares, const std::vector<StepView>& steps) {
  std::int64_t all = 0;
  for (const StepView& step : steps) all += step.end - step.begin;
  if (steps.empty() || steps[0].lanes.size() < 2 || shares.compute >= all) return "";
  const auto count = static_cast<std::int64_t>(steps.size());
  return fmt::format(
      "; the devices compute for {} per step in total, and the step takes {}: one device would be faster",
      time_text(shares.compute / count), time_text(all / count));
}

// The steps that the page's strip cuts off: a few of them change the means.
std::string outliers_text(const std::vector<StepView>& steps) {
  const auto length = [](const StepView& step) { return step.end - step.begin; };
  const std::int64_t median = length(median_step(steps));
  const auto count = std::ranges::count_if(steps, [&](const StepView& step) { return length(step) > 3 * median; });
  std::int64_t longest = 0;
  for (const StepView& step : steps) longest = std::max(longest, length(step));
  if (count == 0) return "";
  return fmt::format("; {} of {} steps {} more than three times the median of {}, the longest {}", count, steps.size(),
                     count == 1 ? "takes" : "take", time_text(median), time_text(longest));
}

}  // namespace

std::string time_text(std::int64_t ns) {
  const auto value = static_cast<double>(ns);
  if (ns < 1'000) return fmt::format("{} ns", ns);
  return ns < 1'000'000 ? fmt::format("{:.1f} us", value / 1e3) : fmt::format("{:.2f} ms", value / 1e6);
}

std::string bytes_text(double bytes) {
  if (bytes >= 1e6) return fmt::format("{:.2f} MB", bytes / 1e6);
  return bytes >= 1e4 ? fmt::format("{:.1f} kB", bytes / 1e3) : fmt::format("{:.0f} B", bytes);
}

std::vector<Cause> causes_of(const Run& run, const std::vector<StepView>& steps) {
  Causes causes;
  for (const StepView& step : steps) {
    for (const Lane& lane : step.lanes) {
      for (const LaneEvent& each : lane.events) {
        if (each.event.kind != TraceKind::kWait) continue;
        if (run.has_ranks())
          is_message(each.event) ? add_wait_for_message(lane, each, causes)
                                 : add_wait_for_collective(lane, each, step, causes);
        else
          add_wait_of_replica(lane, each.event, step, causes);
      }
    }
  }
  return causes.longest_first();
}

std::string verdict(const Run& run, const std::vector<StepView>& steps) {
  const Shares shares = sum_of(steps);
  if (shares.all() == 0) return "the trace has no complete step; mark steps with TraceKind::kStep";
  const auto percent = [all = shares.all()](std::int64_t ns) {
    return 100 * static_cast<double>(ns) / static_cast<double>(all);
  };
  const std::string text = fmt::format(
      "compute {:.0f} %, communication {:.0f} %, waiting {:.0f} %, other (data, bookkeeping) {:.0f} %",
      percent(shares.compute), percent(shares.communication), percent(shares.waiting), percent(shares.other));
  const std::int64_t most = std::max({shares.compute, shares.communication, shares.waiting, shares.other});
  if (most == shares.compute) return text + outliers_text(steps);
  if (most == shares.other)
    return text +
           ": most of the time is neither computing, communication nor waiting, but loading data and bookkeeping";
  const bool waits = most == shares.waiting;
  std::string limit = waits ? ": the step is limited by waiting" : ": the step is limited by communication";
  for (const Cause& cause : causes_of(run, steps)) {
    if (cause.is_waiting != waits) continue;
    const auto count = static_cast<std::int64_t>(steps.size());
    limit += fmt::format(": {}, {} a step on average", cause.text(), time_text(cause.ns / count));
    break;
  }
  return text + limit + lengths_text(shares, steps) + outliers_text(steps);
}

}  // namespace report
