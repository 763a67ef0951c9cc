// A table on a simulated clock.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <initializer_list>
#include <string>
#include <utility>

#include "lockstep/base/check_internal.h"
#include "lockstep/parallel/schedule/schedule_internal.h"

namespace lockstep::parallel {

ScheduleRun::ScheduleRun(const ScheduleRows& rows, const ScheduleSize& size, std::vector<ActionSeconds> seconds,
                         const MessageTime& link, bool has_timeline)
    : rows_(rows), size_(size), seconds_(std::move(seconds)), link_(link), ranks_(rows.size()),
      channels_(2 * static_cast<std::size_t>(size.stages)), has_timeline_(has_timeline) {
  timeline_.ranks.resize(rows.size());
  timeline_.messages.resize(static_cast<std::size_t>(size.stages) - 1, 0);
}

// Actions begin in the order of time, so messages use a port in that order.
bool ScheduleRun::run() {
  for (std::size_t rank = 0; rank < ranks_.size(); ++rank) add_next(rank);
  while (!next_.empty()) {
    const auto [when, rank] = next_.top();
    next_.pop();
    ranks_[rank].is_next = false;
    step(rank, when);
    add_next(rank);
  }
  for (std::size_t rank = 0; rank < ranks_.size(); ++rank) {
    if (ranks_[rank].row < rows_[rank].size()) return false;
  }
  return true;
}

void ScheduleRun::add_next(std::size_t rank) {
  double when = 0;
  if (ranks_[rank].is_next || !can_begin(rank, when)) return;
  ranks_[rank].is_next = true;
  next_.emplace(when, rank);
}

// Whether the next action of `rank` can begin, and when.
bool ScheduleRun::can_begin(std::size_t rank, double& when) const {
  const RankState& state = ranks_[rank];
  if (state.row == rows_[rank].size()) return false;
  const ScheduleAction& action = rows_[rank][state.row];
  when = state.now;
  if (is_computing(action.kind) || action.kind == ActionKind::kReduce) return true;
  const StageChannel channel = StageChannel::of(action);
  const auto& [arrivals, reads] = channels_[channel.index()];
  if (channel.is_send) {
    if (arrivals.size() < kMessagesUnderWay) return true;
    const std::size_t earlier = arrivals.size() - kMessagesUnderWay;
    if (earlier >= reads.size()) return false;
    when = std::max(when, reads[earlier]);
    return true;
  }
  if (reads.size() == arrivals.size()) return false;
  when = std::max(when, arrivals[reads.size()]);
  return true;
}

void ScheduleRun::step(std::size_t rank, double when) {
  RankState& state = ranks_[rank];
  const ScheduleAction& action = rows_[rank][state.row++];
  state.now = when;
  if (is_computing(action.kind)) return compute(rank, action);
  if (action.kind == ActionKind::kReduce) return;
  const StageChannel channel = StageChannel::of(action);
  auto& [arrivals, reads] = channels_[channel.index()];
  if (!channel.is_send) {
    reads.push_back(when);
    return add_next(static_cast<std::size_t>(channel.sender() % size_.ranks));
  }
  const auto to = static_cast<std::size_t>(channel.receiver % size_.ranks);
  RankState& receiver = ranks_[to];
  const double sent = std::max({when, state.sends, receiver.receives}) + link_.transfer;
  state.sends = receiver.receives = sent;
  arrivals.push_back(sent + link_.latency);
  ++timeline_.messages[static_cast<std::size_t>(channel.receiver - (channel.is_backward ? 0 : 1))];
  add_next(to);
}

void ScheduleRun::compute(std::size_t rank, const ScheduleAction& action) {
  RankState& state = ranks_[rank];
  Timeline::Rank& seen = timeline_.ranks[rank];
  const ActionSeconds& of_stage = seconds_[seconds_.size() == 1 ? 0 : static_cast<std::size_t>(action.stage)];
  const double begin = state.now, seconds = of_stage[static_cast<std::size_t>(action.kind)];
  state.now += seconds;
  state.busy += seconds;
  if (!has_timeline_) return;
  seen.actions.push_back({begin, state.now, action});
  const int held = seen.held.empty() ? 0 : seen.held.back().activations;
  if (action.kind == ActionKind::kForward) {
    seen.held.push_back({begin, held + 1});
    seen.in_flight = std::max(seen.in_flight, held + 1);
  } else if (action.kind == ActionKind::kBackwardInput) {
    seen.deferred = std::max(seen.deferred, ++state.deferred);
  } else {
    if (action.kind == ActionKind::kBackwardWeight) --state.deferred;
    seen.held.push_back({state.now, held - 1});
  }
}

Timeline ScheduleRun::timeline() && {
  for (const RankState& state : ranks_) timeline_.seconds = std::max(timeline_.seconds, state.now);
  for (std::size_t rank = 0; rank < ranks_.size(); ++rank) {
    if (timeline_.seconds > 0) timeline_.ranks[rank].idle = std::max(0.0, 1 - ranks_[rank].busy / timeline_.seconds);
    timeline_.idle += timeline_.ranks[rank].idle / size_.ranks;
  }
  return std::move(timeline_);
}

namespace {

using NamedTimes = std::initializer_list<std::pair<const char*, double>>;

void check_times(const NamedTimes& times, const std::string& where) {
  for (const auto& [what, seconds] : times)
    LOCKSTEP_CHECK(std::isfinite(seconds) && seconds >= 0, "simulate: {}.{} is {} s, expected 0 or more", where, what,
                   seconds);
}

ActionSeconds seconds_of(double forward, double input, double weight) {
  return {forward, input, weight, input + weight};
}

}  // namespace

Timeline run_table(const ScheduleTable& table, std::vector<ActionSeconds> seconds, const MessageTime& link) {
  check_times({{"link.latency", link.latency}, {"link.transfer", link.transfer}}, "");
  const ScheduleRows rows = with_messages(table);
  ScheduleRun run(rows, size_of(table), std::move(seconds), link);
  run.run();
  return std::move(run).timeline();
}

Timeline simulate(const ScheduleTable& table, const ScheduleCosts& costs) {
  check_times({{"forward", costs.forward},
               {"backward_input", costs.backward_input},
               {"backward_weight", costs.backward_weight}},
              "");
  return run_table(table,
                   {seconds_of(costs.forward / table.chunks(), costs.backward_input / table.chunks(),
                               costs.backward_weight / table.chunks())},
                   costs.link);
}

Timeline simulate(const ScheduleTable& table, const std::vector<StageCosts>& stages, const MessageTime& link) {
  LOCKSTEP_CHECK(static_cast<int>(stages.size()) == table.stages(),
                 "simulate: times of {} stages, but the table has {}; give one entry for each stage", stages.size(),
                 table.stages());
  std::vector<ActionSeconds> seconds;
  for (std::size_t s = 0; s < stages.size(); ++s) {
    const auto& [forward, input, weight] = stages[s];
    check_times({{"forward", forward}, {"backward_input", input}, {"backward_weight", weight}},
                fmt::format("stages[{}]", s));
    seconds.push_back(seconds_of(forward, input, weight));
  }
  return run_table(table, std::move(seconds), link);
}

}  // namespace lockstep::parallel
