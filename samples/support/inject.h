// Fault injection (--inject): shows how the other ranks notice a faulty rank.
#pragma once

#include <lockstep/lockstep.h>

#include <cstdint>
#include <string>
#include <string_view>

namespace samples {

// Thrown in a rank that must exit: the program then ends with exit code 0 in the middle of the training.
struct DroppedOut {};

// One fault of one rank in one step. Steps count from 1 since the start of the ranks. Ranks that a launcher has
// restarted have no fault.
class Injection {
 public:
  enum class Kind {
    kNone,
    kKill,      // SIGKILL: the rank dies without a message
    kStop,      // SIGSTOP: the rank halts, like a process in a debugger
    kDelay,     // the rank is late by the given number of milliseconds
    kDrop,      // the rank exits without an error, like a program that finishes too early
    kCorrupt,   // one gradient is wrong after the averaging: the rank's parameters diverge
    kMismatch,  // the rank reduces a tensor of another shape than the other ranks
  };
  Injection() = default;  // no fault
  // Parses "kill:rank=1,step=17"; kinds are kill, stop, delay (with ms=200), drop, corrupt and mismatch. Empty: no
  // fault. Throws lockstep::InvalidArgument, which describes the error and the correct form.
  static Injection parse(std::string_view text);
  // Throws lockstep::InvalidArgument unless the fault's rank is below `ranks`.
  void check_rank(int ranks) const;

  // Whether the fault is still to happen after `steps` steps.
  bool is_pending(std::int64_t steps) const;

  Kind kind() const { return kind_; }
  int rank() const { return rank_; }
  std::int64_t step() const { return step_; }
  std::int64_t milliseconds() const { return milliseconds_; }

  // Called at the beginning of a step: performs every fault except kCorrupt. kMismatch uses `group`. Throws DroppedOut
  // for kDrop.
  void before_step(std::int64_t step, lockstep::parallel::ProcessGroup& group) const;
  // Called after backward and before the optimizer's step: performs kCorrupt.
  void after_backward(std::int64_t step, const lockstep::parallel::ProcessGroup& group,
                      const lockstep::nn::Module& model) const;

 private:
  bool is_due(std::int64_t step, const lockstep::parallel::ProcessGroup& group) const;
  void set(std::string_view key, std::string_view value, std::string_view text);

  Kind kind_ = Kind::kNone;
  int rank_ = -1;
  std::int64_t step_ = 0, milliseconds_ = 0;
};

}  // namespace samples
