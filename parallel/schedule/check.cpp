// The checks of a table: every action is there once, in an order that the ranks can run.
#include <algorithm>
#include <utility>

#include "lockstep/base/check_internal.h"
#include "lockstep/parallel/schedule/schedule_internal.h"

namespace lockstep::parallel {
namespace {

constexpr int kKinds = 9;
constexpr int kNone = -1;

// The part of the table around a row of `rank`: a line for each row, a column for each rank.
std::string table_around(const ScheduleRows& rows, int rank, int row) {
  constexpr int kRowsAround = 4, kRanksAround = 3;
  const int first_row = std::max(0, row - kRowsAround), last_row = row + kRowsAround;
  std::vector<std::string> lines = {"\nrow"};
  for (int i = first_row; i <= last_row; ++i) lines.push_back(fmt::format("\n{}", i));
  const auto add_column = [&](auto cell_of) {
    std::size_t width = 0;
    for (const std::string& line : lines) width = std::max(width, line.size());
    for (std::size_t i = 0; i < lines.size(); ++i) {
      const std::string cell = cell_of(static_cast<int>(i) - 1 + first_row, i == 0);
      if (!cell.empty()) lines[i].append(width + 2 - lines[i].size(), ' ').append(cell);
    }
  };
  const int last_rank = std::min(static_cast<int>(rows.size()) - 1, rank + kRanksAround);
  for (int r = std::max(0, rank - kRanksAround); r <= last_rank; ++r) {
    const auto& actions = rows[static_cast<std::size_t>(r)];
    add_column([&](int i, bool is_title) -> std::string {
      if (is_title) return fmt::format("rank {}", r);
      const bool is_there = i < static_cast<int>(actions.size());
      return (is_there ? actions[static_cast<std::size_t>(i)].to_string() : "") +
             (r == rank && i == row ? " <-- here" : "");
    });
  }
  std::string text;
  for (const std::string& line : lines) {
    if (line.find(' ') != std::string::npos) text += line;
  }
  return text;
}

class Check {
 public:
  explicit Check(const ScheduleRows& rows) : rows_(rows) {}

  ScheduleSize run() {
    find_size();
    find_rows();
    for (int stage = 0; stage < size_.stages; ++stage) {
      for (int m = 0; m < size_.micro_batches; ++m) check_computing(stage, m);
    }
    if (has_messages(rows_)) check_messages();
    const ScheduleRows all = with_messages(rows_, size_);
    check_order_of_messages(all);
    ScheduleRun run(all, size_, {{1, 1, 1, 1}}, {}, /*has_timeline=*/false);
    if (!run.run()) fail_deadlock(all, run);
    return size_;
  }

 private:
  int rank_of(int stage) const { return stage % size_.ranks; }
  const std::vector<ScheduleAction>& row_of_stage(int stage) const {
    return rows_[static_cast<std::size_t>(rank_of(stage))];
  }
  const ScheduleAction& at(int rank, int row) const {
    return rows_[static_cast<std::size_t>(rank)][static_cast<std::size_t>(row)];
  }
  int& found(const ScheduleAction& action) {
    const int m = action.kind == ActionKind::kReduce ? 0 : action.micro_batch;
    return found_[static_cast<std::size_t>(
        (static_cast<int>(action.kind) * size_.stages + action.stage) * size_.micro_batches + m)];
  }

  [[noreturn]] void fail(int rank, int row, const std::string& why) const {
    const auto& actions = rows_[static_cast<std::size_t>(rank)];
    const bool is_there = row < static_cast<int>(actions.size());
    throw InvalidArgument(fmt::format("ScheduleTable: rank {}, row {}{}: {}{}", rank, row,
                                      is_there ? ", " + at(rank, row).to_string() : "", why,
                                      table_around(rows_, rank, row)));
  }

  // Calls f(rank, row) for all actions.
  template <class F>
  void for_each(F f) const {
    for (int rank = 0; rank < size_.ranks; ++rank) {
      const auto count = static_cast<int>(rows_[static_cast<std::size_t>(rank)].size());
      for (int row = 0; row < count; ++row) f(rank, row);
    }
  }

  void find_size();
  void find_rows();
  [[noreturn]] void fail_missing(const ScheduleAction& action);
  void check_computing(int stage, int m);
  void check_after(const ScheduleAction& later, const ScheduleAction& earlier, const std::string& why);
  void check_messages();
  void check_order_of_messages(const ScheduleRows& all);
  // B, or its part that the other stages wait for; B, or its part that makes gradients of parameters.
  ScheduleAction backward_of(int stage, int m) { return whole_or(ActionKind::kBackwardInput, stage, m); }
  ScheduleAction gradient_of(int stage, int m) { return whole_or(ActionKind::kBackwardWeight, stage, m); }
  ScheduleAction whole_or(ActionKind part, int stage, int m) {
    const ScheduleAction whole{ActionKind::kBackward, stage, m};
    return found(whole) != kNone ? whole : ScheduleAction{part, stage, m};
  }
  ScheduleAction shown(const ScheduleAction& message);
  [[noreturn]] void fail_deadlock(const ScheduleRows& all, const ScheduleRun& run);
  std::pair<ScheduleAction, const char*> needed(const ScheduleRows& all, const ScheduleAction& blocked);

  const ScheduleRows& rows_;
  ScheduleSize size_;
  std::vector<int> found_;  // rows, by kind, stage and micro-batch
};

// Takes the numbers of stages and micro-batches from the largest ones.
void Check::find_size() {
  LOCKSTEP_CHECK(!rows_.empty() && rows_.size() <= kMaxScheduleRanks, "ScheduleTable: {} ranks, expected 1 to {}",
                 rows_.size(), kMaxScheduleRanks);
  size_.ranks = static_cast<int>(rows_.size());
  size_.stages = size_.ranks;
  for_each([&](int rank, int row) {
    const ScheduleAction& action = at(rank, row);
    const int stage = action.stage, m = action.micro_batch;
    if (stage < 0 || stage >= kMaxScheduleCells || m < 0 || m >= kMaxScheduleMicroBatches)
      fail(rank, row,
           fmt::format("expected stages below {} and micro-batches below {}", kMaxScheduleCells,
                       kMaxScheduleMicroBatches));
    if (rank_of(stage) != rank)
      fail(rank, row,
           fmt::format("stage {} belongs to rank {} (stage % ranks); move the action to the line of that rank", stage,
                       rank_of(stage)));
    size_.stages = std::max(size_.stages, (stage / size_.ranks + 1) * size_.ranks);
    size_.micro_batches = std::max(size_.micro_batches, m + 1);
  });
  LOCKSTEP_CHECK(size_.micro_batches > 0, "ScheduleTable: there are no actions");
  LOCKSTEP_CHECK(std::int64_t{size_.stages} * size_.micro_batches <= kMaxScheduleCells,
                 "ScheduleTable: {} stages with {} micro-batches, expected at most {} forwards", size_.stages,
                 size_.micro_batches, kMaxScheduleCells);
}

void Check::find_rows() {
  found_.assign(static_cast<std::size_t>(kKinds * size_.stages * size_.micro_batches), kNone);
  for_each([&](int rank, int row) {
    int& before = found(at(rank, row));
    if (before != kNone) fail(rank, row, fmt::format("is a duplicate of row {}; remove one of them", before));
    before = row;
  });
}

// Points to an action of the same micro-batch, or to where the one before is.
void Check::fail_missing(const ScheduleAction& action) {
  const auto& actions = row_of_stage(action.stage);
  const auto same = std::ranges::find_if(actions, [&](const ScheduleAction& each) {
    return is_computing(each.kind) && each.stage == action.stage && each.micro_batch == action.micro_batch;
  });
  int row = static_cast<int>(same - actions.begin());
  if (same == actions.end() && action.micro_batch > 0)
    row = std::max(found({action.kind, action.stage, action.micro_batch - 1}), 0);
  fail(rank_of(action.stage), row,
       fmt::format("{} is missing; a stage needs F, and B or both I and W, of each of {} micro-batches",
                   action.to_string(), size_.micro_batches));
}

void Check::check_after(const ScheduleAction& later, const ScheduleAction& earlier, const std::string& why) {
  if (found(later) < found(earlier))
    fail(rank_of(later.stage), found(later),
         fmt::format("comes before {} of row {}; move it behind, since {}", earlier.to_string(), found(earlier), why));
}

void Check::check_computing(int stage, int m) {
  const ScheduleAction forward{ActionKind::kForward, stage, m}, input{ActionKind::kBackwardInput, stage, m},
      weight{ActionKind::kBackwardWeight, stage, m}, whole{ActionKind::kBackward, stage, m};
  if (found(forward) == kNone) fail_missing(forward);
  if (found(whole) != kNone) {
    for (const ScheduleAction& part : {input, weight}) {
      if (found(part) != kNone)
        fail(rank_of(stage), found(part),
             fmt::format("is a part of {} in row {}; use B, or I and W", whole.to_string(), found(whole)));
    }
  } else {
    if (found(input) == kNone && found(weight) == kNone) fail_missing(whole);
    for (const ScheduleAction& part : {input, weight}) {
      if (found(part) == kNone) fail_missing(part);
    }
    check_after(weight, input, "W needs what I leaves");
  }
  const ScheduleAction backward = backward_of(stage, m);
  check_after(backward, forward, "backward needs what forward saves");
  // The sum over micro-batches has one order, and so the same bits, in every schedule.
  if (m > 0)
    check_after(gradient_of(stage, m), gradient_of(stage, m - 1),
                "gradients of parameters are added in ascending order of micro-batches");
  if (size_.ranks > 1 || stage == 0) return;
  check_after(forward, {ActionKind::kForward, stage - 1, m}, "a stage needs the outputs of the one before");
  check_after(backward_of(stage - 1, m), backward, "a stage needs the gradients of the one after");
}

void Check::check_messages() {
  const int last = size_.stages - 1;
  const auto check = [&](bool is_needed, ActionKind kind, const ScheduleAction& action, bool is_before) {
    const ScheduleAction message{kind, action.stage, kind == ActionKind::kReduce ? 0 : action.micro_batch};
    const int row = found(message), rank = rank_of(action.stage);
    if (!is_needed && row != kNone) fail(rank, row, "no other rank is at this end of the stage; remove the message");
    if (!is_needed) return;
    const char* const where = is_before ? "before" : "after";
    if (row == kNone)
      fail(rank, found(action),
           fmt::format("needs {} {} it; add that, or remove all messages and REDUCE_GRAD", message.to_string(), where));
    if ((row < found(action)) != is_before)
      fail(rank, row, fmt::format("must come {} {}, row {}", where, action.to_string(), found(action)));
  };
  for (int stage = 0; stage <= last; ++stage) {
    const bool has_previous = size_.ranks > 1 && stage > 0, has_next = size_.ranks > 1 && stage < last;
    for (int m = 0; m < size_.micro_batches; ++m) {
      const ScheduleAction forward{ActionKind::kForward, stage, m}, backward = backward_of(stage, m);
      check(has_previous, ActionKind::kReceiveForward, forward, true);
      check(has_next, ActionKind::kSendForward, forward, false);
      check(has_next, ActionKind::kReceiveBackward, backward, true);
      check(has_previous, ActionKind::kSendBackward, backward, false);
    }
    check(true, ActionKind::kReduce, gradient_of(stage, size_.micro_batches - 1), false);
  }
}

// The action that needs or makes a message, if the table has no messages.
ScheduleAction Check::shown(const ScheduleAction& message) {
  if (has_messages(rows_)) return message;
  if (message.kind == ActionKind::kSendForward || message.kind == ActionKind::kReceiveForward)
    return {ActionKind::kForward, message.stage, message.micro_batch};
  return backward_of(message.stage, message.micro_batch);
}

void Check::check_order_of_messages(const ScheduleRows& all) {
  std::vector<std::vector<ScheduleAction>> sent(2 * static_cast<std::size_t>(size_.stages)), read(sent.size());
  for (const auto& actions : all) {
    for (const ScheduleAction& action : actions) {
      if (is_computing(action.kind) || action.kind == ActionKind::kReduce) continue;
      const StageChannel channel = StageChannel::of(action);
      (channel.is_send ? sent : read)[channel.index()].push_back(action);
    }
  }
  for (std::size_t c = 0; c < sent.size(); ++c) {
    for (std::size_t i = 0; i < sent[c].size(); ++i) {
      if (sent[c][i].micro_batch == read[c][i].micro_batch) continue;
      const ScheduleAction reader = shown(read[c][i]);
      fail(rank_of(reader.stage), found(reader),
           fmt::format("needs micro-batch {} of stage {}, which sends micro-batch {} first; use one order",
                       reader.micro_batch, sent[c][i].stage, sent[c][i].micro_batch));
    }
  }
}

// Returns the action that a blocked message waits for, and the reason.
std::pair<ScheduleAction, const char*> Check::needed(const ScheduleRows& all, const ScheduleAction& blocked) {
  switch (blocked.kind) {
    case ActionKind::kReceiveForward:
      return {{ActionKind::kSendForward, blocked.stage - 1, blocked.micro_batch}, "needs"};
    case ActionKind::kReceiveBackward:
      return {{ActionKind::kSendBackward, blocked.stage + 1, blocked.micro_batch}, "needs"};
    default:
      break;
  }
  // Its receiver has yet to read the message that was sent kMessagesUnderWay earlier.
  const bool is_forward = blocked.kind == ActionKind::kSendForward;
  std::vector<int> sent;
  for (const ScheduleAction& action : all[static_cast<std::size_t>(rank_of(blocked.stage))]) {
    if (action.kind == blocked.kind && action.stage == blocked.stage) sent.push_back(action.micro_batch);
    if (action == blocked) break;
  }
  return {{is_forward ? ActionKind::kReceiveForward : ActionKind::kReceiveBackward,
           blocked.stage + (is_forward ? 1 : -1), sent[sent.size() - 1 - kMessagesUnderWay]},
          "sends a message, and two are not yet read by"};
}

// Follows the blocked ranks from the first one to the first that appears twice, or some steps in a long pipeline.
void Check::fail_deadlock(const ScheduleRows& all, const ScheduleRun& run) {
  const auto blocked_at = [&](int rank) { return all[static_cast<std::size_t>(rank)][run.row(rank)]; };
  constexpr int kMostSteps = 8;
  int rank = 0, steps = 0;
  while (run.row(rank) == all[static_cast<std::size_t>(rank)].size()) ++rank;
  std::vector<bool> is_seen(rows_.size(), false);
  std::string why;
  const int first = rank;
  while (!is_seen[static_cast<std::size_t>(rank)] && ++steps <= kMostSteps) {
    is_seen[static_cast<std::size_t>(rank)] = true;
    const auto [other, relation] = needed(all, blocked_at(rank));
    rank = rank_of(other.stage);
    const ScheduleAction waits_for = shown(other), before = shown(blocked_at(rank));
    why += fmt::format("{}{} {} of rank {}, row {}", why.empty() ? "" : ", which ", relation, waits_for.to_string(),
                       rank, found(waits_for));
    if (waits_for != before) why += fmt::format(", which comes after {} of row {}", before.to_string(), found(before));
  }
  fail(first, found(shown(blocked_at(first))),
       why + (steps > kMostSteps ? ", ...: no rank can go on" : ": no rank can go on"));
}

}  // namespace

ScheduleSize check_schedule(const ScheduleRows& rows) { return Check(rows).run(); }

}  // namespace lockstep::parallel
