// The pass that adds messages and reductions to a table.
#include <algorithm>

#include "lockstep/parallel/schedule/schedule_internal.h"

namespace lockstep::parallel {

bool has_messages(const ScheduleRows& rows) {
  return std::ranges::any_of(rows, [](const std::vector<ScheduleAction>& row) {
    return !std::ranges::all_of(row, is_computing, &ScheduleAction::kind);
  });
}

StageChannel StageChannel::of(const ScheduleAction& message) {
  const bool is_backward = message.kind == ActionKind::kSendBackward || message.kind == ActionKind::kReceiveBackward,
             is_send = message.kind == ActionKind::kSendForward || message.kind == ActionKind::kSendBackward;
  return {is_backward, is_send, message.stage + (is_send ? (is_backward ? -1 : 1) : 0)};
}

ScheduleRows with_messages(const ScheduleRows& rows, const ScheduleSize& size) {
  if (has_messages(rows)) return rows;
  ScheduleRows all(rows.size());
  std::vector<int> gradients(static_cast<std::size_t>(size.stages), 0);
  for (std::size_t rank = 0; rank < rows.size(); ++rank) {
    for (const ScheduleAction& action : rows[rank]) {
      const auto& [kind, stage, m] = action;
      const bool is_forward = kind == ActionKind::kForward,
                 meets_others = kind != ActionKind::kBackwardWeight && size.ranks > 1,
                 has_source = is_forward ? stage > 0 : stage + 1 < size.stages,
                 has_target = is_forward ? stage + 1 < size.stages : stage > 0;
      if (meets_others && has_source)
        all[rank].push_back({is_forward ? ActionKind::kReceiveForward : ActionKind::kReceiveBackward, stage, m});
      all[rank].push_back(action);
      if (meets_others && has_target)
        all[rank].push_back({is_forward ? ActionKind::kSendForward : ActionKind::kSendBackward, stage, m});
      const bool is_gradient = kind == ActionKind::kBackward || kind == ActionKind::kBackwardWeight;
      if (is_gradient && ++gradients[static_cast<std::size_t>(stage)] == size.micro_batches)
        all[rank].push_back({ActionKind::kReduce, stage, 0});
    }
  }
  return all;
}

ScheduleRows with_messages(const ScheduleTable& table) {
  ScheduleRows rows;
  for (int rank = 0; rank < table.ranks(); ++rank) rows.push_back(table.actions(rank));
  return with_messages(rows, size_of(table));
}

}  // namespace lockstep::parallel
