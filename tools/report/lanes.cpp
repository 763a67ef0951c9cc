#include "tools/report/lanes.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <numeric>
#include <queue>
#include <utility>

#include "tools/report/messages.h"
#include "tools/report/parts.h"

namespace report {
namespace {

namespace ls = lockstep;
namespace par = lockstep::parallel;
using ls::TraceEvent;
using ls::TraceKind;

constexpr const char* kReplicasWait = "replicas";  // the first device's wait for all replicas

struct Window {
  std::int64_t begin = 0, end = 0;
  bool has(const TraceEvent& event) const { return event.begin >= begin && event.end <= end; }
};

using Windows = std::map<std::int64_t, Window>;  // by the step's number

// The steps between the ends of optimizer steps.
std::vector<Window> windows_by_optimizer(const std::vector<TraceEvent>& events) {
  std::vector<Window> windows;
  std::int64_t begin = events.front().begin;
  bool has_backward = false;
  for (const TraceEvent& event : events) {
    has_backward = has_backward || event.kind == TraceKind::kBackward;
    if (event.kind != TraceKind::kOptimizer || !has_backward) continue;
    windows.push_back({begin, event.end});
    begin = event.end;
    has_backward = false;
  }
  return windows;
}

std::vector<Window> windows_without_numbers(const std::vector<TraceEvent>& events) {
  std::vector<Window> windows;
  for (const TraceEvent& event : events) {
    if (event.kind == TraceKind::kStep) windows.push_back({event.begin, event.end});
  }
  if (windows.empty() && !events.empty()) windows = windows_by_optimizer(events);
  if (!windows.empty() || events.empty()) return windows;
  std::int64_t end = 0;
  for (const TraceEvent& event : events) end = std::max(end, event.end);
  return {{events.front().begin, end}};
}

// Steps without numbers get some so that the last one has the number `last`, or if that is 0, the number of steps.
Windows step_windows(const ls::Trace& trace, std::int64_t last) {
  Windows windows;
  for (const TraceEvent& event : trace.events) {
    if (event.kind == TraceKind::kStep && event.labels.id >= 0) windows[event.labels.id] = {event.begin, event.end};
  }
  if (!windows.empty()) return windows;
  const std::vector<Window> found = windows_without_numbers(trace.events);
  const auto count = static_cast<std::int64_t>(found.size());
  std::int64_t number = (last > 0 ? last : count) - count;
  for (const Window& window : found) windows[++number] = window;
  return windows;
}

bool is_moment(TraceKind kind) {
  return kind == TraceKind::kBucketReady || kind == TraceKind::kBucketLaunched || kind == TraceKind::kBucketDone;
}

// Whether events of this kind are shown in a lane; the other kinds enclose them, or are values.
bool is_shown(TraceKind kind) {
  return kind != TraceKind::kStep && kind != TraceKind::kReplica && kind != TraceKind::kHops &&
         kind != TraceKind::kMemory && kind != TraceKind::kPlan && kind != TraceKind::kAction;
}

// The replica that the event's thread was running; 0 outside of all replicas.
std::size_t replica_of(const TraceEvent& event, const std::vector<const TraceEvent*>& replicas) {
  for (const TraceEvent* replica : replicas) {
    if (replica->thread == event.thread && replica->begin <= event.begin && event.end <= replica->end)
      return static_cast<std::size_t>(std::max<std::int64_t>(replica->labels.id, 0));
  }
  return 0;
}

// The lanes of one process: a single lane, or with DataParallel one for each replica. Events are ordered by begin.
std::vector<Lane> lanes_of(const ls::Trace& trace, const Window& window, bool has_ranks) {
  std::vector<const TraceEvent*> replicas, shown, memory, actions;
  std::size_t count = 1;
  for (const TraceEvent& event : trace.events) {
    if (!window.has(event)) continue;
    if (is_shown(event.kind)) shown.push_back(&event);
    if (event.kind == TraceKind::kMemory) memory.push_back(&event);
    if (event.kind == TraceKind::kAction) actions.push_back(&event);
    if (event.kind != TraceKind::kReplica) continue;
    replicas.push_back(&event);
    count = std::max(count, static_cast<std::size_t>(std::clamp<std::int64_t>(event.labels.id, 0, 255)) + 1);
  }
  std::vector<Lane> lanes(count);
  for (std::size_t lane = 0; lane < count; ++lane)
    lanes[lane].name = has_ranks ? fmt::format("rank {}", trace.rank) : fmt::format("cpu:{}", lane);
  for (const TraceEvent* replica : replicas) {
    const auto lane = static_cast<std::size_t>(std::clamp<std::int64_t>(replica->labels.id, 0, 255));
    lanes[lane].is_replica = lane > 0;  // the first replica shares its lane with the main thread
    lanes[lane].at_work.push_back(*replica);
  }
  for (const TraceEvent* event : memory) lanes[0].memory.push_back(*event);
  for (const TraceEvent* event : actions) lanes[0].actions.push_back(*event);
  for (const TraceEvent* event : shown)
    lanes[std::min(replica_of(*event, replicas), count - 1)].events.push_back({.event = *event});
  return lanes;
}

// Sets the depth of each event: one more than that of the innermost event that encloses it.
void stack(Lane& lane) {
  std::vector<std::int64_t> rows;  // end of the latest event at each depth
  for (LaneEvent& each : lane.events) {
    if (each.event.kind == TraceKind::kCollective || is_moment(each.event.kind)) {
      each.depth = -1;
      continue;
    }
    std::size_t row = rows.size();
    while (row > 0 && rows[row - 1] <= each.event.begin) --row;
    rows.resize(row);
    rows.push_back(each.event.end);
    each.depth = static_cast<int>(row);
  }
}

// The device's work during `event`, as a cause for others to wait.
std::string work_name(const TraceEvent& event) {
  switch (event.kind) {
    case TraceKind::kForward:
      return event.name == "loss" ? "loss" : "forward";
    case TraceKind::kBackward:
      return "backward";
    case TraceKind::kOptimizer:
      return "optimizer";
    case TraceKind::kCopy:
      return "copy of " + event.name;
    default:
      return event.name;
  }
}

// The cause for which a replica waits between `begin` and `end`: the first device's longest work in that time. A moment
// belongs to the innermost event, and without one to loading data and bookkeeping.
std::string awaited_work(const Lane& first, std::int64_t begin, std::int64_t end) {
  std::map<std::string, std::int64_t> times;
  std::int64_t& untraced = times["loading of data and bookkeeping"];
  untraced = end - begin;
  std::vector<std::string> around;  // by depth
  for (const LaneEvent& each : first.events) {
    const std::int64_t within = std::min(each.event.end, end) - std::max(each.event.begin, begin);
    if (each.depth < 0) continue;
    const auto depth = static_cast<std::size_t>(each.depth);
    around.resize(depth);
    around.push_back(each.event.kind == TraceKind::kKernel && depth > 0 ? around[depth - 1] : work_name(each.event));
    if (within <= 0) continue;
    times[around[depth]] += within;
    (depth > 0 ? times[around[depth - 1]] : untraced) -= within;
  }
  const auto longest = std::ranges::max_element(times, {}, [](const auto& entry) { return entry.second; });
  if (longest->first == kReplicasWait) return first.name + " to go on when all devices are done";
  const bool is_all = ratio(longest->second, end - begin) > 1 - kPart;
  return first.name + (is_all ? "'s " : ", mainly its ") + longest->first;
}

// Adds the waits of a replica: the times in which it has no work. While the first device is at work itself, a replica that
// begins later waits for its thread.
void add_waits(Lane& lane, const Lane& first, const Window& window) {
  std::vector<TraceEvent> waits;
  const auto add = [&](std::int64_t begin, std::int64_t end, std::string name) {
    if (begin < end) waits.push_back({.kind = TraceKind::kWait, .name = std::move(name), .begin = begin, .end = end});
  };
  std::int64_t idle = window.begin;
  for (const TraceEvent& work : lane.at_work) {
    std::int64_t start = work.begin;
    for (const TraceEvent& other : first.at_work)
      if (other.begin >= idle && other.begin < work.begin) start = std::min(start, other.begin);
    add(idle, start, awaited_work(first, idle, start));
    add(start, work.begin, "its thread to start");
    idle = std::max(idle, work.end);
  }
  add(idle, window.end, awaited_work(first, idle, window.end));
  for (TraceEvent& wait : waits) lane.events.push_back({.event = std::move(wait)});
  std::ranges::stable_sort(lane.events, [](const LaneEvent& a, const LaneEvent& b) {
    return a.event.begin != b.event.begin ? a.event.begin < b.event.begin : a.event.end > b.event.end;
  });
}

using CollectiveKey = std::pair<int, std::int64_t>;  // group, number
using Launches = std::map<CollectiveKey, std::vector<std::pair<int, const TraceEvent*>>>;

// Assigns every moment of the step to the active event that began last.
Shares shares_of(const Lane& lane, const Window& window, bool has_ranks) {
  struct Piece {
    std::int64_t begin, end;
    std::int64_t Shares::*share;
  };
  std::vector<Piece> pieces;
  std::vector<std::int64_t> edges = {window.begin, window.end};
  const auto add = [&](std::int64_t begin, std::int64_t end, std::int64_t Shares::*share) {
    pieces.push_back({begin, end, share});
    edges.push_back(begin);
    edges.push_back(end);
  };
  if (lane.is_replica) add(window.begin, window.end, &Shares::waiting);
  for (const TraceEvent& event : lane.at_work) {
    if (lane.is_replica) add(event.begin, event.end, &Shares::other);
  }
  for (const LaneEvent& each : lane.events) {
    const TraceEvent& event = each.event;
    if (each.depth < 0) continue;
    if (event.kind == TraceKind::kWait && has_ranks) {
      add(event.begin, each.launched, &Shares::waiting);
      add(each.launched, event.end, &Shares::communication);
    } else {
      add(event.begin, event.end,
          event.kind == TraceKind::kWait   ? &Shares::waiting
          : event.kind == TraceKind::kCopy ? &Shares::communication
          : event.kind == TraceKind::kUser ? &Shares::other
                                           : &Shares::compute);
    }
  }
  std::ranges::sort(edges);
  std::vector<std::size_t> by_begin(pieces.size());
  std::iota(by_begin.begin(), by_begin.end(), std::size_t{0});
  std::ranges::stable_sort(by_begin, {}, [&](std::size_t i) { return pieces[i].begin; });
  Shares shares;
  std::priority_queue<std::size_t> active;  // of several pieces the one that was added last counts
  std::size_t next = 0;
  for (std::size_t i = 0; i + 1 < edges.size(); ++i) {
    for (; next < by_begin.size() && pieces[by_begin[next]].begin <= edges[i]; ++next) active.push(by_begin[next]);
    while (!active.empty() && pieces[active.top()].end <= edges[i]) active.pop();
    shares.*(active.empty() ? &Shares::other : pieces[active.top()].share) += edges[i + 1] - edges[i];
  }
  return shares;
}

std::vector<Arrival> arrivals_of(const Launches& launches, const std::vector<ls::Trace>& traces) {
  std::vector<Arrival> arrivals;
  for (const auto& [key, ranks] : launches) {
    if (ranks.size() < 2) continue;
    const auto by_begin = [](const auto& entry) { return entry.second->begin; };
    const auto first = std::ranges::min_element(ranks, {}, by_begin),
               last = std::ranges::max_element(ranks, {}, by_begin);
    const std::int64_t late = by_begin(*last) - by_begin(*first);
    const auto error = [&](int rank) { return traces[static_cast<std::size_t>(rank)].clock_error; };
    arrivals.push_back({.name = last->second->name,
                        .group = key.first,
                        .id = key.second,
                        .last = last->first,
                        .at = by_begin(*last),
                        .late = late,
                        .is_certain = late > error(first->first) + error(last->first)});
  }
  return arrivals;
}

// When a wait of `rank` could no longer be for another rank: its begin if that is unknown, its end for a message of
// which the other rank has no event.
std::int64_t all_launched(const TraceEvent& wait, int rank, const std::vector<Arrival>& arrivals,
                          const MessageLaunches& messages) {
  std::int64_t at = wait.begin;
  if (is_message(wait)) {
    at = messages.by_other_rank(wait, rank).value_or(wait.end);
  } else {
    for (const Arrival& arrival : arrivals)
      if (arrival.id == wait.labels.id && arrival.group == wait.labels.group) at = arrival.at;
  }
  return std::clamp(at, wait.begin, std::max(wait.begin, wait.end));
}

// The times of a rank's buckets, in the order of their numbers.
std::vector<par::BucketStats> buckets_of(const Lane& lane, std::int64_t zero) {
  std::map<std::int64_t, par::BucketStats> buckets;
  for (const LaneEvent& each : lane.events) {
    const TraceEvent& event = each.event;
    if (!is_moment(event.kind)) continue;
    par::BucketStats& bucket = buckets[event.labels.id];
    const double seconds = 1e-9 * static_cast<double>(event.begin - zero);
    bucket.bytes = event.labels.bytes;
    if (event.kind == TraceKind::kBucketReady) bucket.ready = seconds;
    if (event.kind == TraceKind::kBucketLaunched) bucket.launched = seconds;
    if (event.kind == TraceKind::kBucketDone) bucket.done = seconds;
  }
  std::vector<par::BucketStats> out;
  for (auto& [number, bucket] : buckets) out.push_back(std::move(bucket));
  return out;
}

}  // namespace

void add(par::CommunicationOverlap& sum, const par::CommunicationOverlap& more) {
  sum.seconds += more.seconds;
  sum.early_seconds += more.early_seconds;
  sum.bytes += more.bytes;
  sum.early_bytes += more.early_bytes;
}

Shares& Shares::operator+=(const Shares& more) {
  compute += more.compute;
  communication += more.communication;
  waiting += more.waiting;
  other += more.other;
  return *this;
}

std::vector<StepView> last_steps(const Run& run, std::size_t count) {
  std::vector<Windows> windows;
  for (const ls::Trace& trace : run.traces)
    windows.push_back(step_windows(trace, windows.empty() || windows[0].empty() ? 0 : windows[0].rbegin()->first));
  std::vector<std::int64_t> numbers;
  for (const auto& entry : windows.empty() ? Windows() : windows[0]) {
    const std::int64_t number = entry.first;
    if (std::ranges::all_of(windows, [number](const auto& own) { return own.contains(number); }))
      numbers.push_back(number);
  }
  if (numbers.size() > count) numbers.erase(numbers.begin(), numbers.end() - static_cast<std::ptrdiff_t>(count));

  const bool has_ranks = run.has_ranks();
  std::vector<StepView> steps;
  for (const std::int64_t number : numbers) {
    StepView& step = steps.emplace_back(StepView{.number = number});
    std::vector<Window> of_lane;
    std::vector<int> rank_of_lane;
    for (std::size_t t = 0; t < windows.size(); ++t) {
      const Window& window = windows[t].at(number);
      step.begin = t == 0 ? window.begin : std::min(step.begin, window.begin);
      step.end = std::max(step.end, window.end);
      std::vector<Lane> lanes = lanes_of(run.traces[t], window, has_ranks);
      for (Lane& lane : lanes) {
        stack(lane);
        if (!lane.is_replica) continue;
        add_waits(lane, lanes[0], window);
        stack(lane);
      }
      for (Lane& lane : lanes) {
        step.lanes.push_back(std::move(lane));
        of_lane.push_back(window);
        rank_of_lane.push_back(run.traces[t].rank);
      }
    }
    Launches launches;
    MessageLaunches messages;
    for (std::size_t i = 0; i < step.lanes.size(); ++i) {
      const Lane& lane = step.lanes[i];
      add(step.overlap, par::communication_overlap(buckets_of(lane, step.begin)));
      for (const LaneEvent& each : lane.events) {
        const bool is_copy = each.event.kind == TraceKind::kCopy && stage_message(each.event.name);
        if (is_copy || (each.event.kind == TraceKind::kCollective && is_message(each.event)))
          messages.add(each.event, rank_of_lane[i]);
        if (each.event.kind != TraceKind::kCollective || is_message(each.event) || !has_ranks) continue;
        const int rank = std::clamp(each.event.labels.from, 0, static_cast<int>(run.traces.size()) - 1);
        launches[{each.event.labels.group, each.event.labels.id}].emplace_back(rank, &each.event);
      }
    }
    step.arrivals = arrivals_of(launches, run.traces);
    for (std::size_t i = 0; i < step.lanes.size(); ++i) {
      Lane& lane = step.lanes[i];
      for (LaneEvent& each : lane.events)
        if (each.event.kind == TraceKind::kWait)
          each.launched = all_launched(each.event, rank_of_lane[i], step.arrivals, messages);
      lane.shares = shares_of(lane, of_lane[i], has_ranks);
    }
  }
  return steps;
}

}  // namespace report
