// Passes over schedule tables: messages, checks, and a simulated run, which all work on rows of actions by rank.
#pragma once

#include <array>
#include <cstddef>
#include <functional>
#include <queue>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/parallel/schedule/schedule.h"

namespace lockstep::parallel {

using ScheduleRows = std::vector<std::vector<ScheduleAction>>;

// Limits of a table. 1,024 micro-batches is also the limit of random numbers.
inline constexpr int kMaxScheduleRanks = 1024, kMaxScheduleMicroBatches = 1024, kMaxScheduleCells = 1 << 17;
// The longest text of a table, which has F, I, W, four messages and a reduction for each stage and micro-batch, as
// "131071F1023,", "131071SEND_F1023," and "131071REDUCE_GRAD,".
inline constexpr int kMaxScheduleBytes = kMaxScheduleCells * (3 * 12 + 4 * 17 + 18);
// Messages of one direction that two stages hold at a time: one that is sent does not wait unless this many are unread.
inline constexpr int kMessagesUnderWay = 2;

struct ScheduleSize {
  int ranks = 0, stages = 0, micro_batches = 0;
};
inline ScheduleSize size_of(const ScheduleTable& table) {
  return {table.ranks(), table.stages(), table.micro_batches()};
}

// Rows of the schedules, without messages.
ScheduleRows schedule_rows(Schedule schedule, int ranks, int micro_batches, int chunks);

inline bool is_computing(ActionKind kind) { return kind <= ActionKind::kBackward; }
bool has_messages(const ScheduleRows& rows);
// Adds what happens between stages: receives directly before the actions that need them, sends directly after those that
// make them, kReduce after the last gradients of a stage's parameters. Rows that have messages stay as they are.
ScheduleRows with_messages(const ScheduleRows& rows, const ScheduleSize& size);
ScheduleRows with_messages(const ScheduleTable& table);

// Checks rows as ScheduleTable describes. Throws InvalidArgument.
ScheduleSize check_schedule(const ScheduleRows& rows);

ScheduleRows parse_schedule(std::span<const std::byte> text, const std::string& name);  // throws IoError

// The messages from a stage to the next one (is_backward: to the previous one).
struct StageChannel {
  bool is_backward = false, is_send = false;
  int receiver = 0;  // stage

  static StageChannel of(const ScheduleAction& message);
  static StageChannel at(std::size_t index) { return {index % 2 == 1, false, static_cast<int>(index / 2)}; }
  int sender() const { return is_backward ? receiver + 1 : receiver - 1; }  // stage
  std::size_t index() const { return 2 * static_cast<std::size_t>(receiver) + (is_backward ? 1 : 0); }
};

// Seconds of F, I, W, B.
using ActionSeconds = std::array<double, 4>;

// Runs rows with messages on a simulated clock, with messages of a channel in the order of sending.
class ScheduleRun {
 public:
  // `seconds`: by stage, or one for all stages.
  ScheduleRun(const ScheduleRows& rows, const ScheduleSize& size, std::vector<ActionSeconds> seconds,
              const MessageTime& link, bool has_timeline = true);
  // Runs all actions. Returns false if no rank can go on.
  bool run();
  // The row at which a rank is, its size at the end.
  std::size_t row(int rank) const { return ranks_[static_cast<std::size_t>(rank)].row; }
  Timeline timeline() &&;

 private:
  struct RankState {
    std::size_t row = 0;
    double now = 0, busy = 0, sends = 0, receives = 0;  // sends, receives: ends of the ports' use
    int deferred = 0;                                   // I is done, W is not
    bool is_next = false;                               // is in next_
  };
  struct ChannelState {
    std::vector<double> arrivals, reads;  // by message
  };

  using Next = std::pair<double, std::size_t>;  // when a rank can begin its next action

  void add_next(std::size_t rank);
  bool can_begin(std::size_t rank, double& when) const;
  void step(std::size_t rank, double when);
  void compute(std::size_t rank, const ScheduleAction& action);

  const ScheduleRows& rows_;
  ScheduleSize size_;
  std::vector<ActionSeconds> seconds_;
  MessageTime link_;
  std::vector<RankState> ranks_;
  std::vector<ChannelState> channels_;
  std::priority_queue<Next, std::vector<Next>, std::greater<>> next_;  // of ranks that are not blocked
  bool has_timeline_;  // false: a run only tells whether all actions can run
  Timeline timeline_;
};

// Runs all actions of a table. `seconds` as above.
Timeline run_table(const ScheduleTable& table, std::vector<ActionSeconds> seconds, const MessageTime& link);

}  // namespace lockstep::parallel
