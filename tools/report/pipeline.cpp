#include "tools/report/pipeline.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <iterator>
#include <map>
#include <span>
#include <tuple>
#include <utility>

#include "lockstep/parallel/schedule/schedule_internal.h"

namespace report {
namespace {

namespace ls = lockstep;
namespace par = lockstep::parallel;
using par::ActionKind;
using par::ScheduleAction;

ScheduleAction action_of(const ls::TraceEvent& event) {
  const par::ScheduleRows rows = par::parse_schedule(std::as_bytes(std::span(event.name)), "an action of the trace");
  if (rows.size() != 1 || rows[0].size() != 1)
    throw ls::IoError(fmt::format("an action of the trace is \"{}\", expected one like 0F3", event.name.substr(0, 40)));
  return rows[0][0];
}

bool is_gradient(const ScheduleAction& action) {
  return action.kind == ActionKind::kBackward || action.kind == ActionKind::kBackwardWeight;
}

// The steps of a rank: in each, the rows of the schedule ascend. Only steps with a backward are kept.
std::vector<PipelineRankStep> steps_of(const ls::Trace& trace, std::size_t position) {
  std::vector<ls::TraceEvent> events;
  std::ranges::copy_if(trace.events, std::back_inserter(events),
                       [](const ls::TraceEvent& event) { return event.kind == ls::TraceKind::kAction; });
  std::ranges::stable_sort(events, {}, [](const ls::TraceEvent& event) {  // some have no duration
    return std::tuple(event.begin, event.labels.id);
  });
  std::vector<PipelineRankStep> steps;
  std::int64_t last = -1;
  for (const ls::TraceEvent& event : events) {
    if (steps.empty() || event.labels.id <= last) steps.push_back({.trace = position});
    last = event.labels.id;
    steps.back().events.push_back(event);
    steps.back().actions.push_back(action_of(event));
  }
  std::erase_if(steps, [](const PipelineRankStep& step) { return std::ranges::none_of(step.actions, is_gradient); });
  return steps;
}

// Steps by rank of the pipeline and replica. The ranks of a pipeline have the stages 0 to p - 1 as their first ones.
using StepsOfRanks = std::vector<std::vector<std::vector<PipelineRankStep>>>;

StepsOfRanks steps_of_ranks(const std::vector<ls::Trace>& traces) {
  std::map<int, std::vector<std::vector<PipelineRankStep>>> by_stage;
  for (std::size_t t = 0; t < traces.size(); ++t) {
    std::vector<PipelineRankStep> steps = steps_of(traces[t], t);
    if (steps.empty()) continue;
    const int first = std::ranges::min(steps.back().actions, {}, &ScheduleAction::stage).stage;
    by_stage[first].push_back(std::move(steps));
  }
  StepsOfRanks ranks;
  for (auto& [stage, replicas] : by_stage) ranks.push_back(std::move(replicas));
  const bool has_all = std::ranges::all_of(ranks, [&](const auto& each) { return each.size() == ranks[0].size(); });
  if (!has_all) ranks.clear();
  return ranks;
}

std::vector<ScheduleAction> computing(const std::vector<ScheduleAction>& actions) {
  std::vector<ScheduleAction> kept;
  std::ranges::copy_if(actions, std::back_inserter(kept), par::is_computing, &ScheduleAction::kind);
  return kept;
}

par::ScheduleRows computing_rows(const PipelineStepTimes& step) {
  par::ScheduleRows rows;
  for (const PipelineRankStep& rank : step.ranks) rows.push_back(computing(rank.actions));
  return rows;
}

template <class Body>
void for_each_computing(const PipelineRankStep& rank, Body body) {
  for (std::size_t i = 0; i < rank.actions.size(); ++i) {
    if (par::is_computing(rank.actions[i].kind)) body(rank.actions[i], rank.events[i]);
  }
}

void find_times(PipelineStepTimes& step) {
  step.begin = INT64_MAX;
  for (const PipelineRankStep& rank : step.ranks) {
    for_each_computing(rank, [&](const ScheduleAction&, const ls::TraceEvent& event) {
      step.begin = std::min(step.begin, event.begin);
      step.end = std::max(step.end, event.end);
    });
  }
}

// The last steps of all ranks, which belong together, as far as they have the actions of the very last one.
std::vector<PipelineStepTimes> complete_steps(const StepsOfRanks& ranks) {
  std::size_t count = SIZE_MAX;
  for (const auto& replicas : ranks) {
    for (const auto& steps : replicas) count = std::min(count, steps.size());
  }
  std::vector<PipelineStepTimes> all;
  for (std::size_t back = count; back > 0; --back) {
    for (std::size_t replica = 0; replica < ranks[0].size(); ++replica) {
      PipelineStepTimes& step = all.emplace_back();
      for (const auto& replicas : ranks)
        step.ranks.push_back(*(replicas[replica].end() - static_cast<std::ptrdiff_t>(back)));
      find_times(step);
    }
  }
  const par::ScheduleRows last = all.empty() ? par::ScheduleRows() : computing_rows(all.back());
  std::erase_if(all, [&](const PipelineStepTimes& step) { return computing_rows(step) != last; });
  return all;
}

double median(std::vector<double> values) {
  if (values.empty()) return 0;
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::ranges::nth_element(values, middle);
  return *middle;
}

double duration(const ls::TraceEvent& event) { return static_cast<double>(event.end - event.begin); }

void measure_stages(PipelineProfile& profile) {
  std::vector<std::array<std::vector<double>, 4>> durations(static_cast<std::size_t>(profile.table.stages()));
  for (const PipelineStepTimes& step : profile.steps) {
    for (const PipelineRankStep& rank : step.ranks) {
      for_each_computing(rank, [&](const ScheduleAction& action, const ls::TraceEvent& event) {
        durations[static_cast<std::size_t>(action.stage)][static_cast<std::size_t>(action.kind)].push_back(
            duration(event));
      });
    }
  }
  const auto at = [](const auto& of_stage, ActionKind kind) {
    return median(of_stage[static_cast<std::size_t>(kind)]);
  };
  for (const auto& of_stage : durations) {
    const bool is_joint = of_stage[static_cast<std::size_t>(ActionKind::kBackwardWeight)].empty();
    const double half = at(of_stage, ActionKind::kBackward) / 2;
    profile.is_split = profile.is_split || !is_joint;
    profile.stages.push_back({.forward = at(of_stage, ActionKind::kForward),
                              .backward_input = is_joint ? half : at(of_stage, ActionKind::kBackwardInput),
                              .backward_weight = is_joint ? half : at(of_stage, ActionKind::kBackwardWeight)});
  }
}

// A message: channel and micro-batch.
using MessageKey = std::pair<std::size_t, int>;

void measure_link(PipelineProfile& profile) {
  std::vector<double> latencies;
  for (const PipelineStepTimes& step : profile.steps) {
    std::map<MessageKey, std::pair<const ls::TraceEvent*, const ls::TraceEvent*>> messages;  // send, receive
    for (const PipelineRankStep& rank : step.ranks) {
      for (std::size_t i = 0; i < rank.actions.size(); ++i) {
        if (par::is_computing(rank.actions[i].kind) || rank.actions[i].kind == ActionKind::kReduce) continue;
        const par::StageChannel channel = par::StageChannel::of(rank.actions[i]);
        auto& [send, receive] = messages[{channel.index(), rank.actions[i].micro_batch}];
        (channel.is_send ? send : receive) = &rank.events[i];
      }
    }
    for (const auto& entry : messages) {
      const auto& [send, receive] = entry.second;
      if (send && receive && receive->begin <= send->begin)
        latencies.push_back(static_cast<double>(std::max(receive->end, send->begin) - send->begin));
    }
  }
  profile.link.latency = median(std::move(latencies));
}

}  // namespace

double PipelineStepTimes::idle(std::size_t rank) const {
  double busy = 0;
  for_each_computing(ranks[rank], [&](const ScheduleAction&, const ls::TraceEvent& event) { busy += duration(event); });
  return end > begin ? 1 - busy / static_cast<double>(end - begin) : 0;
}

double PipelineStepTimes::idle() const {
  double sum = 0;
  for (std::size_t rank = 0; rank < ranks.size(); ++rank) sum += idle(rank);
  return sum / static_cast<double>(ranks.size());
}

const PipelineStepTimes& PipelineProfile::median_step() const {
  std::vector<const PipelineStepTimes*> sorted;
  for (const PipelineStepTimes& step : steps) sorted.push_back(&step);
  std::ranges::stable_sort(sorted, {}, [](const PipelineStepTimes* step) { return step->end - step->begin; });
  return *sorted[sorted.size() / 2];
}

std::vector<par::StageCosts> PipelineProfile::stages_for(int count) const {
  const int own = static_cast<int>(stages.size());
  if (count % own != 0 && own % count != 0)
    throw ls::InvalidArgument(fmt::format(
        "schedule: the trace has {} stages, and the schedule {}; expected a multiple or a divisor", own, count));
  std::vector<par::StageCosts> out;
  const int parts = std::max(count / own, 1), together = std::max(own / count, 1);
  for (int stage = 0; stage < count; ++stage) {
    par::StageCosts& sum = out.emplace_back(par::StageCosts{0, 0, 0});
    for (int i = 0; i < together; ++i) {
      const par::StageCosts& one = stages[static_cast<std::size_t>(stage / parts * together + i)];
      sum.forward += one.forward / parts;
      sum.backward_input += one.backward_input / parts;
      sum.backward_weight += one.backward_weight / parts;
    }
  }
  return out;
}

std::optional<PipelineProfile> pipeline_profile(const std::vector<ls::Trace>& traces) {
  const StepsOfRanks ranks = steps_of_ranks(traces);
  std::vector<PipelineStepTimes> steps = ranks.empty() ? std::vector<PipelineStepTimes>() : complete_steps(ranks);
  if (steps.empty()) return std::nullopt;
  std::optional<PipelineProfile> profile;
  try {
    profile.emplace(PipelineProfile{.table = par::ScheduleTable(computing_rows(steps.back()))});
  } catch (const ls::InvalidArgument&) {  // actions are missing: the trace does not have the whole step
    return std::nullopt;
  }
  profile->steps = std::move(steps);
  measure_stages(*profile);
  measure_link(*profile);
  return profile;
}

}  // namespace report
