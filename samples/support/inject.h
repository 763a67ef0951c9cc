// Faults on purpose (--inject): what a broken rank looks like from the others.
#pragma once

#include <lockstep/lockstep.h>

#include <cstdint>
#include <string>
#include <string_view>

namespace samples {

// Thrown in a rank that is to leave: its program ends well, in the midst of the training.
struct DroppedOut {};

// One fault of one rank in one step, counted from 1 since the ranks were started. Only where a launcher has not started
// the ranks again before: a restarted run meets no fault.
class Injection {
 public:
  enum class Kind {
    kNone,
    kKill,      // the rank is gone, without a word
    kStop,      // it stands still, as a process in a debugger does
    kDelay,     // it is late by so many milliseconds
    kDrop,      // it leaves, without an error of its own, as a program does that is done too early
    kCorrupt,   // one of its gradients is wrong, after they were averaged: its parameters leave the others'
    kMismatch,  // it averages a tensor of another shape than the others
  };
  Injection() = default;  // no fault
  // "kill:rank=1,step=17"; kinds kill, stop, delay (with ms=200), drop, corrupt and mismatch; empty: no fault. Throws
  // lockstep::InvalidArgument, which says what is wrong and what is right.
  static Injection parse(std::string_view text);
  // Throws lockstep::InvalidArgument where there is no such rank among `ranks`.
  void check_rank(int ranks) const;

  // Whether the fault has not happened after `steps` steps.
  bool is_pending(std::int64_t steps) const;

  Kind kind() const { return kind_; }
  int rank() const { return rank_; }
  std::int64_t step() const { return step_; }
  std::int64_t milliseconds() const { return milliseconds_; }

  // At the beginning of this rank's step: the fault, unless it is a wrong gradient. `group` is where it mismatches. Throws
  // DroppedOut where the rank is to leave.
  void before_step(std::int64_t step, lockstep::parallel::ProcessGroup& group) const;
  // When the gradients are there, before the optimizer's step.
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
