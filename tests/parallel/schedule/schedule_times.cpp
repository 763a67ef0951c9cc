// Step times, activations and messages of generated tables, against closed forms.
#include <doctest/doctest.h>

#include <algorithm>
#include <vector>

#include "lockstep/base/error.h"
#include "lockstep/parallel/schedule/schedule.h"

namespace par = lockstep::parallel;

namespace {

constexpr par::Schedule kAll[] = {par::Schedule::kGPipe, par::Schedule::k1F1B, par::Schedule::kInterleaved,
                                  par::Schedule::kZeroBubble};
// Multiples of 12, so that the times of up to 4 chunks are exact.
constexpr par::ScheduleCosts kCosts[] = {{.forward = 120, .backward_input = 120, .backward_weight = 120},
                                         {.forward = 120, .backward_input = 132, .backward_weight = 96},
                                         {.forward = 120, .backward_input = 168, .backward_weight = 120}};

struct Case {
  par::Schedule schedule;
  int ranks, micro_batches, chunks;
};

std::vector<Case> all_cases() {
  std::vector<Case> cases;
  for (const par::Schedule schedule : kAll) {
    const bool is_interleaved = schedule == par::Schedule::kInterleaved;
    for (int ranks = 1; ranks <= 8; ++ranks) {
      for (int m = 1; m <= 16; ++m) {
        for (int chunks = 1; chunks <= (is_interleaved ? 4 : 1); ++chunks) {
          if (!is_interleaved || m % ranks == 0) cases.push_back({schedule, ranks, m, chunks});
        }
      }
    }
  }
  return cases;
}

double step_time(const Case& c, const par::ScheduleCosts& costs) {
  const double f = costs.forward, i = costs.backward_input, w = costs.backward_weight;
  if (c.schedule == par::Schedule::kZeroBubble) return c.micro_batches * (f + i + w) + (c.ranks - 1) * (f + i - w);
  return c.micro_batches * (f + i + w) + (c.ranks - 1) * (f + i + w) / c.chunks;
}

int in_flight(const Case& c, int rank) {
  switch (c.schedule) {
    case par::Schedule::kGPipe:
      return c.micro_batches;
    case par::Schedule::k1F1B:
      return std::min(c.ranks - rank, c.micro_batches);
    case par::Schedule::kInterleaved:
      return std::min(c.micro_batches * c.chunks, 2 * (c.ranks - rank - 1) + (c.chunks - 1) * c.ranks + 1);
    default:
      return std::min(c.ranks, c.micro_batches);
  }
}

}  // namespace

TEST_CASE("the step time of every schedule is that of its closed form") {
  int compared = 0;
  for (const Case& c : all_cases()) {
    if (c.schedule == par::Schedule::kZeroBubble && c.micro_batches < c.ranks) continue;
    const auto table = par::ScheduleTable::make(c.schedule, c.ranks, c.micro_batches, c.chunks);
    for (const par::ScheduleCosts& costs : kCosts) {
      CAPTURE(par::name(c.schedule));
      CAPTURE(c.ranks);
      CAPTURE(c.micro_batches);
      CAPTURE(c.chunks);
      const par::Timeline timeline = par::simulate(table, costs);
      CHECK(timeline.seconds == step_time(c, costs));
      const double work = c.micro_batches * (costs.forward + costs.backward_input + costs.backward_weight);
      for (const auto& rank : timeline.ranks) CHECK(rank.idle == doctest::Approx(1 - work / timeline.seconds));
      CHECK(timeline.idle == doctest::Approx(1 - work / timeline.seconds));
      ++compared;
    }
  }
  CHECK(compared == 3 * (2 * 8 * 16 + 4 * (16 + 8 + 5 + 4 + 3 + 2 + 2 + 2) + 100));
}

TEST_CASE("zb1p has its closed form as long as W takes no longer than F and I") {
  const auto table = par::ScheduleTable::make(par::Schedule::kZeroBubble, 4, 8);
  for (int f = 1; f <= 4; ++f) {
    for (int i = 1; i <= 4; ++i) {
      for (int w = 1; w <= 4; ++w) {
        const par::ScheduleCosts costs{
            .forward = 1.0 * f, .backward_input = 1.0 * i, .backward_weight = 1.0 * w, .link = {}};
        const bool is_equal =
            par::simulate(table, costs).seconds == step_time({par::Schedule::kZeroBubble, 4, 8, 1}, costs);
        CHECK(is_equal == (w <= f && w <= i));
      }
    }
  }
}

TEST_CASE("a rank holds as many activations as its closed form says, and none at the end") {
  for (const Case& c : all_cases()) {
    CAPTURE(par::name(c.schedule));
    CAPTURE(c.ranks);
    CAPTURE(c.micro_batches);
    CAPTURE(c.chunks);
    const auto table = par::ScheduleTable::make(c.schedule, c.ranks, c.micro_batches, c.chunks);
    const par::Timeline timeline = par::simulate(table, {});
    for (int rank = 0; rank < c.ranks; ++rank) {
      const auto& seen = timeline.ranks[static_cast<std::size_t>(rank)];
      CHECK(seen.in_flight == in_flight(c, rank));
      CHECK(seen.deferred == (c.schedule == par::Schedule::kZeroBubble ? std::min(rank + 1, c.micro_batches) : 0));
      CHECK(std::ranges::max(seen.held, {}, &par::Timeline::Held::activations).activations == seen.in_flight);
      CHECK(seen.held.size() == 2 * static_cast<std::size_t>(c.micro_batches * c.chunks));
      CHECK(seen.held.back().activations == 0);
      CHECK(std::ranges::is_sorted(seen.held, {}, &par::Timeline::Held::seconds));
    }
  }
}

TEST_CASE("each boundary between stages has two messages for each micro-batch") {
  for (const Case& c : all_cases()) {
    const auto table = par::ScheduleTable::make(c.schedule, c.ranks, c.micro_batches, c.chunks);
    CHECK(table.stages() == c.ranks * c.chunks);
    CHECK(par::simulate(table, {}).messages ==
          std::vector<int>(static_cast<std::size_t>(table.stages()) - 1, c.ranks > 1 ? 2 * c.micro_batches : 0));
  }
}

TEST_CASE("every generated table has each action once") {
  for (const Case& c : all_cases()) {
    const auto table = par::ScheduleTable::make(c.schedule, c.ranks, c.micro_batches, c.chunks);
    CHECK(table.ranks() == c.ranks);
    CHECK(table.chunks() == c.chunks);
    CHECK(table.micro_batches() == c.micro_batches);
    const std::size_t kinds = c.schedule == par::Schedule::kZeroBubble ? 3 : 2;
    for (int rank = 0; rank < c.ranks; ++rank)
      CHECK(table.actions(rank).size() == kinds * static_cast<std::size_t>(c.micro_batches * c.chunks));
  }
}

TEST_CASE("a link delays stages: its latency once for each boundary, its transfers one after another") {
  using par::Schedule;
  const auto table = par::ScheduleTable::make(Schedule::kGPipe, 4, 1);
  CHECK(par::simulate(table, {.link = {.latency = 10}}).seconds == 4 * 3 + 6 * 10);
  CHECK(par::simulate(table, {.link = {.latency = 1, .transfer = 9}}).seconds == 4 * 3 + 6 * 10);
  // The last of eight outputs leaves when the others have, and its gradient follows all of them.
  const auto many = par::ScheduleTable::make(Schedule::kGPipe, 2, 8);
  CHECK(par::simulate(many, {.link = {.transfer = 10}}).seconds == 1 + 8 * 10 + 1 + 8 * 2 + (8 * 10 - 7 * 2) + 2);
  // Rank 1 receives the third output of rank 0 from second 21 to 31, then the first gradient of rank 2, ready at 25.
  const auto middle = par::simulate(par::ScheduleTable::make(Schedule::k1F1B, 3, 3), {.link = {.transfer = 10}});
  CHECK(middle.ranks[2].actions[1].end == 25);
  CHECK(middle.ranks[1].actions[2].action.to_string() == "1B0");
  CHECK(middle.ranks[1].actions[2].begin == 41);
  const auto one = par::ScheduleTable::make(Schedule::kGPipe, 1, 8);
  CHECK(par::simulate(one, {.link = {.latency = 10}}).seconds == 8 * 3);
}

TEST_CASE("stages with equal times have the step of equal stages, and others the sum along their path") {
  for (const Case& c : all_cases()) {
    const auto table = par::ScheduleTable::make(c.schedule, c.ranks, c.micro_batches, c.chunks);
    const par::StageCosts each{120.0 / c.chunks, 132.0 / c.chunks, 96.0 / c.chunks};
    const std::vector<par::StageCosts> stages(static_cast<std::size_t>(table.stages()), each);
    const double seconds = par::simulate(table, stages, {.latency = 7}).seconds;
    CHECK(seconds == par::simulate(table, {120, 132, 96, {.latency = 7}}).seconds);
  }
  // The slowest stage works without a pause between the first forward and the last backward of the one before.
  const auto table = par::ScheduleTable::make(par::Schedule::k1F1B, 3, 8);
  const std::vector<par::StageCosts> stages = {{1, 1, 1}, {4, 4, 4}, {2, 1, 1}};
  CHECK(par::simulate(table, stages, {}).seconds == 1 + 8 * 12 + 2);
  const auto split = par::ScheduleTable::make(par::Schedule::kZeroBubble, 2, 1);
  CHECK(par::simulate(split, {{1, 2, 3}, {4, 5, 6}}, {.latency = 10}).seconds == 1 + 10 + 4 + 5 + 10 + 2 + 3);
}

TEST_CASE("simulate refuses times that are none, by name") {
  const auto table = par::ScheduleTable::make(par::Schedule::k1F1B, 2, 2);
  CHECK_THROWS_WITH_AS(par::simulate(table, {.backward_input = -1}),
                       "simulate: .backward_input is -1 s, expected 0 or more", lockstep::InvalidArgument);
  CHECK_THROWS_WITH_AS(par::simulate(table, {.link = {.latency = 1.0 / 0.0}}),
                       "simulate: .link.latency is inf s, expected 0 or more", lockstep::InvalidArgument);
  CHECK_THROWS_WITH_AS(par::simulate(table, {{1, 1, 1}, {1, -2, 1}}, {}),
                       "simulate: stages[1].backward_input is -2 s, expected 0 or more", lockstep::InvalidArgument);
  CHECK_THROWS_WITH_AS(par::simulate(table, {{1, 1, 1}}, {}),
                       "simulate: times of 1 stages, but the table has 2; give one entry for each stage",
                       lockstep::InvalidArgument);
  const par::Timeline nothing = par::simulate(table, {.forward = 0, .backward_input = 0, .backward_weight = 0});
  CHECK(nothing.seconds == 0);
  CHECK(nothing.idle == 0);
}

TEST_CASE("numbers that a schedule cannot have are errors with those that it can") {
  using par::Schedule;
  const auto make = par::ScheduleTable::make;
  const auto text = [&](Schedule schedule, int ranks, int micro_batches, int chunks) -> std::string {
    try {
      make(schedule, ranks, micro_batches, chunks);
    } catch (const lockstep::InvalidArgument& error) {
      return error.what();
    }
    return "";
  };
  CHECK(text(Schedule::kInterleaved, 4, 6, 2) ==
        "ScheduleTable: 6 micro-batches are no multiple of 4 ranks, which interleaved needs; use 4 or 8");
  CHECK(text(Schedule::kInterleaved, 4, 2, 2) ==
        "ScheduleTable: 2 micro-batches are no multiple of 4 ranks, which interleaved needs; use 4");
  CHECK(text(Schedule::k1F1B, 4, 8, 2) ==
        "ScheduleTable: 1f1b has one chunk for each rank, got 2; use interleaved, or 1 chunk");
  CHECK(text(Schedule::kGPipe, 0, 8, 1) == "ScheduleTable: gpipe with 0 ranks, expected 1 to 1024");
  CHECK(text(Schedule::kZeroBubble, 2, 1025, 1) == "ScheduleTable: zb1p with 1025 micro-batches, expected 1 to 1024");
  CHECK(text(Schedule::kInterleaved, 2, 4, 0) == "ScheduleTable: interleaved with 0 chunks, expected 1 to 131072");
  CHECK(text(Schedule::kInterleaved, 1024, 1024, 1) ==
        "ScheduleTable: 1024 stages with 1024 micro-batches are 1048576 forwards, expected at most 131072; use fewer");
}
