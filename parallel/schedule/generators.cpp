// The orders of actions of known schedules.
#include <tuple>

#include "lockstep/base/check_internal.h"
#include "lockstep/parallel/schedule/schedule_internal.h"

namespace lockstep::parallel {
namespace {

using Row = std::vector<ScheduleAction>;

// `before` forwards, then a forward and a backward in turns. action(kind, k) is action number k of `total` of this kind.
template <class Action>
Row in_turns(int total, int before, Action action) {
  Row row;
  for (int k = -before; k < total; ++k) {
    if (before + k < total) row.push_back(action(ActionKind::kForward, before + k));
    if (k >= 0) row.push_back(action(ActionKind::kBackward, k));
  }
  return row;
}

// The same with one chunk on each rank.
Row in_one_chunk(int rank, int micro_batches, int before) {
  return in_turns(micro_batches, before, [&](ActionKind kind, int m) { return ScheduleAction{kind, rank, m}; });
}

// As 1F1B with I in place of B. W follows `rank` micro-batches later: it fills the gap after the last forward, which is
// longer on later ranks.
Row zero_bubble(int ranks, int rank, int micro_batches) {
  Row row;
  int weight = 0;
  for (const ScheduleAction& action : in_one_chunk(rank, micro_batches, ranks - 1 - rank)) {
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
  const int group = ranks * chunks;
  const auto action = [&](ActionKind kind, int k) {
    const int chunk = k % group / ranks;
    return ScheduleAction{kind, (kind == ActionKind::kForward ? chunk : chunks - 1 - chunk) * ranks + rank,
                          k / group * ranks + k % ranks};
  };
  return in_turns(micro_batches * chunks, 2 * (ranks - rank - 1) + (chunks - 1) * ranks, action);
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
        rows.push_back(in_one_chunk(rank, micro_batches, micro_batches));
        break;
      case Schedule::k1F1B:
        rows.push_back(in_one_chunk(rank, micro_batches, ranks - 1 - rank));
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
