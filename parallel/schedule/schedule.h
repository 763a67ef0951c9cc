/// \file
/// Pipeline schedules as data: for each rank, the actions of a training step in the order in which the rank runs them.
///
///     const auto table = ScheduleTable::make(Schedule::k1F1B, /*ranks=*/4, /*micro_batches=*/8);
///     table.save("mine.csv");  // a line for each rank, as PyTorch writes them: 0F0,0F1,0F2,0F3,,,0B0, ...
///     const Timeline timeline = simulate(table, {.forward = 1, .backward_input = 1.3, .backward_weight = 0.9});
///
/// A model is cut into stages that follow each other. Stage s is on rank s % ranks, as model chunk s / ranks of that
/// rank. Below, "chunk" is a model chunk.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace lockstep::parallel {

/// Schedules of p ranks, M micro-batches and v chunks for each rank. F, I and W are the times of ScheduleCosts, and
/// B = I + W.
///                  step time                       activations that rank r holds
///     gpipe        (M + p - 1) (F + B)             M
///     1f1b         (M + p - 1) (F + B)             min(p - r, M)
///     interleaved  (M + (p - 1) / v) (F + B)       min(M v, 2 (p - r - 1) + (v - 1) p + 1), each of a chunk
///     zb1p         M (F + B) + (p - 1)(F + I - W)  min(p, M)
/// The step time of zb1p holds for M >= p, W <= F and W <= I. Between I and W are at most min(r + 1, M) of its activations.
enum class Schedule : std::uint8_t {
  kGPipe,        ///< all forwards, then all backwards (Huang et al., 2019)
  k1F1B,         ///< one forward, one backward in turns (Narayanan et al., 2019)
  kInterleaved,  ///< the same with several chunks for each rank (Narayanan et al., 2021)
  kZeroBubble,   ///< W, which no other rank waits for, fills gaps: ZB-H1 with p in flight (Qi et al., 2023)
};
const char* name(Schedule schedule);  ///< "gpipe", "1f1b", "interleaved", "zb1p"

/// The kind of an action. Text has the names in parentheses.
enum class ActionKind : std::uint8_t {
  kForward,          ///< forward of a stage (F)
  kBackwardInput,    ///< gradients of the inputs of a stage (I)
  kBackwardWeight,   ///< gradients of the parameters of a stage, after I (W)
  kBackward,         ///< I and W at once (B)
  kSendForward,      ///< sends the outputs to the next stage (SEND_F)
  kReceiveForward,   ///< receives them from the previous stage (RECV_F)
  kSendBackward,     ///< sends the gradients of the inputs to the previous stage (SEND_B)
  kReceiveBackward,  ///< receives them from the next stage (RECV_B)
  kReduce,           ///< reduces the gradients of the stage's parameters over replicas (REDUCE_GRAD)
};

/// One action of a rank.
struct ScheduleAction {
  ActionKind kind = ActionKind::kForward;  ///< what the rank does
  int stage = 0;                           ///< the stage of the model
  int micro_batch = 0;                     ///< 0 in kReduce, which is for all micro-batches
  std::string to_string() const;           ///< "0F3": stage, kind, micro-batch
  friend bool operator==(const ScheduleAction&, const ScheduleAction&) = default;
};

/// The actions of all ranks. A table is valid: each micro-batch passes each stage once, forward and backward; gradients
/// of parameters come in ascending order of micro-batches; the ranks can run all actions, with two messages under way
/// between two stages. `make`, `load` and the constructor throw InvalidArgument otherwise, naming rank, row (from 0) and
/// action, with that part of the table.
class ScheduleTable {
 public:
  /// Throws InvalidArgument for numbers that the schedule cannot have; the error names possible ones. Interleaved needs
  /// micro-batches that are a multiple of the ranks, and the others have one chunk. ranks * chunks * micro_batches is at
  /// most 131,072.
  static ScheduleTable make(Schedule schedule, int ranks, int micro_batches, int chunks = 1);
  /// A table of your own: for each rank the actions F, B, I and W. Messages and kReduce may be there, all or none; none
  /// stands for messages at the first need.
  explicit ScheduleTable(std::vector<std::vector<ScheduleAction>> rows);

  /// Reads PyTorch's CSV: a line for each rank, a cell for each action, as 0F3; empty cells have no effect. Stage s must
  /// be on rank s % ranks, and actions are F, I, W, B, SEND_*, RECV_* and REDUCE_GRAD only. In errors about the table,
  /// row n of rank r is the action n (from 0, without empty cells) of line r + 1.
  /// Throws IoError, with line and column (counted in cells, from 1), if a cell is no action, and InvalidArgument as
  /// above.
  static ScheduleTable load(const std::string& path);
  void save(const std::string& path) const;  ///< writes to_string(); throws IoError
  /// The table as CSV. A column is a time step if every action takes one, so ranks that wait have empty cells. Tables
  /// with messages, or with more than 524,288 cells, have no empty cells.
  std::string to_string() const;

  int ranks() const { return static_cast<int>(rows_.size()); }  ///< number of ranks of the pipeline
  int chunks() const { return stages_ / ranks(); }              ///< number of model chunks on each rank
  int stages() const { return stages_; }                        ///< number of stages of the model
  int micro_batches() const { return micro_batches_; }          ///< number of micro-batches of a step
  const std::vector<ScheduleAction>& actions(int rank) const;   ///< the actions in the order of running
  friend bool operator==(const ScheduleTable&, const ScheduleTable&) = default;

 private:
  std::vector<std::vector<ScheduleAction>> rows_;
  int stages_ = 0, micro_batches_ = 0;
};

/// Times of a message between two ranks, in seconds. A rank sends one message at a time, and receives one at a time.
struct MessageTime {
  double latency = 0;   ///< from the end of sending to the arrival
  double transfer = 0;  ///< in which the message occupies sender and receiver; ranks can compute meanwhile
};

/// Times of a step's parts. All stages take equally long.
struct ScheduleCosts {
  double forward = 1;          ///< seconds of a micro-batch in all chunks of a rank: F
  double backward_input = 1;   ///< seconds in all chunks: I
  double backward_weight = 1;  ///< seconds in all chunks: W; B takes both
  MessageTime link = {};       ///< times of each message
};

/// Times of one stage's actions for a micro-batch, in seconds.
struct StageCosts {
  double forward = 1;          ///< F
  double backward_input = 1;   ///< I
  double backward_weight = 1;  ///< W; B takes both
};

/// A simulated step.
struct Timeline {
  /// An action that computes.
  struct Timed {
    double begin = 0;            ///< seconds from the start of the step
    double end = 0;              ///< seconds from the start of the step
    ScheduleAction action = {};  ///< F, I, W or B
  };
  /// The number of activations (of one chunk and one micro-batch) that a rank holds from a moment on.
  struct Held {
    double seconds = 0;   ///< from the start of the step
    int activations = 0;  ///< begun forward, and not yet through B or W
  };
  /// A rank's part of the step.
  struct Rank {
    std::vector<Timed> actions;  ///< in order
    std::vector<Held> held;      ///< every change
    int in_flight = 0;           ///< the most that the rank holds
    int deferred = 0;  ///< the most of them between I and W: their gradients, which W needs, are held in addition
    double idle = 0;   ///< share of the step in which the rank does not compute
  };
  double seconds = 0;              ///< seconds that the step takes
  double idle = 0;                 ///< mean over all ranks
  std::vector<Rank> ranks;         ///< by rank
  std::vector<int> messages = {};  ///< between stages s and s + 1, in both directions together, by s
};

/// Predicts a step. A rank begins an action when the one before is done and its inputs have arrived; it waits while two
/// earlier messages to the same stage are not received. Throws InvalidArgument for a negative time.
Timeline simulate(const ScheduleTable& table, const ScheduleCosts& costs);
/// The same with times of each stage. Throws InvalidArgument also if `stages` has not one entry for each stage.
Timeline simulate(const ScheduleTable& table, const std::vector<StageCosts>& stages, const MessageTime& link);

}  // namespace lockstep::parallel
