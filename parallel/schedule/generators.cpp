// The orders of actions of known schedules.
#include <algorithm>
#include <tuple>

#include "lockstep/base/check_internal.h"
#include "lockstep/parallel/schedule/schedule_internal.h"

namespace lockstep::parallel {
namespace {

using Row = std::vector<ScheduleAction>;

Row gpipe(int rank, int micro_batches) {
  Row row;
  for (const ActionKind kind : {ActionKind::kForward, ActionKind::kBackward}) {
    for (int m = 0; m < micro_batches; ++m) row.push_back({kind, rank, m});
  }
  return row;
}

Row one_f_one_b(int ranks, int rank, int micro_batches) {
  Row row;
  int forward = 0, backward = 0;
  while (forward < std::min(ranks - 1 - rank, micro_batches)) row.push_back({ActionKind::kForward, rank, forward++});
  while (backward < micro_batches) {
    if (forward < micro_batches) row.push_back({ActionKind::kForward, rank, forward++});
    row.push_back({ActionKind::kBackward, rank, backward++});
  }
  return row;
}

// As 1F1B with I in place of B. W follows `rank` micro-batches later: it fills the gap after the last forward, which is
// longer on later ranks.
Row zero_bubble(int ranks, int rank, int micro_batches) {
  Row row;
  int weight = 0;
  for (const ScheduleAction& action : one_f_one_b(ranks, rank, micro_batches)) {
    if (action.kind == ActionKind::kForward) {
      row.push_back(action);
      continue;
    }
    row.push_back({ActionKind::kBackwardInput, rank, action.micro_batch});
    if (action.micro_batch >= rank) row.push_back({ActionKind::kBackwardWeight, rank, weight++});
  }
  while (weight < micro_batches) row.push_back({ActionKind::kBackwardWeight, rank, weight++});
  return row;
}

// Micro-batches in groups of `ranks` pass one chunk after the other.
Row interleaved(int ranks, int rank, int micro_batches, int chunks) {
  const int total = micro_batches * chunks, group = ranks * chunks,
            before = std::min(total, 2 * (ranks - rank - 1) + (chunks - 1) * ranks);  // forwards before 1F1B begins
  const auto action = [&](ActionKind kind, int k) {
    const int chunk = k % group / ranks;
    return ScheduleAction{kind, (kind == ActionKind::kForward ? chunk : chunks - 1 - chunk) * ranks + rank,
                          k / group * ranks + k % ranks};
  };
  Row row;
  for (int k = 0; k < before; ++k) row.push_back(action(ActionKind::kForward, k));
  for (int k = 0; k < total; ++k) {
    if (before + k < total) row.push_back(action(ActionKind::kForward, before + k));
    row.push_back(action(ActionKind::kBackward, k));
  }
  return row;
}

void check(Schedule schedule, int ranks, int micro_batches, int chunks) {
  const char* const who = name(schedule);
  for (const auto& [what, number, limit] : {std::tuple{"ranks", ranks, kMaxScheduleRanks},
                                            {"micro-batches", micro_batches, kMaxScheduleMicroBatches},
                                            {"chunks", chunks, kMaxScheduleCells}})
    LOCKSTEP_CHECK(number >= 1 && number <= limit, "ScheduleTable: {} with {} {}, expected 1 to {}", who, number, what,
                   limit);
  const bool is_interleaved = schedule == Schedule::kInterleaved;
  LOCKSTEP_CHECK(is_interleaved || chunks == 1,
                 "ScheduleTable: {} has one chunk for each rank, got {}; use interleaved, or 1 chunk", who, chunks);
  if (is_interleaved && micro_batches % ranks != 0) {
    const int below = micro_batches / ranks * ranks;
    throw InvalidArgument(
        fmt::format("ScheduleTable: {} micro-batches are no multiple of {} ranks, which interleaved needs; use {}{}",
                    micro_batches, ranks, below > 0 ? fmt::format("{} or ", below) : "", below + ranks));
  }
  const std::int64_t cells = std::int64_t{ranks} * chunks * micro_batches;
  LOCKSTEP_CHECK(cells <= kMaxScheduleCells,
                 "ScheduleTable: {} stages with {} micro-batches are {} forwards, expected at most {}; use fewer",
                 std::int64_t{ranks} * chunks, micro_batches, cells, kMaxScheduleCells);
}

}  // namespace

const char* name(Schedule schedule) {
  constexpr const char* kNames[] = {"gpipe", "1f1b", "interleaved", "zb1p"};
  return kNames[static_cast<std::size_t>(schedule)];
}

ScheduleRows schedule_rows(Schedule schedule, int ranks, int micro_batches, int chunks) {
  check(schedule, ranks, micro_batches, chunks);
  ScheduleRows rows;
  for (int rank = 0; rank < ranks; ++rank) {
    switch (schedule) {
      case Schedule::kGPipe:
        rows.push_back(gpipe(rank, micro_batches));
        break;
      case Schedule::k1F1B:
        rows.push_back(one_f_one_b(ranks, rank, micro_batches));
        break;
      case Schedule::kInterleaved:
        rows.push_back(interleaved(ranks, rank, micro_batches, chunks));
        break;
      case Schedule::kZeroBubble:
        rows.push_back(zero_bubble(ranks, rank, micro_batches));
        break;
    }
  }
  return rows;
}

}  // namespace lockstep::parallel
