// Messages that must move while their rank waits in another group. Not installed.
#pragma once

#include "lockstep/parallel/comm/process_group.h"

namespace lockstep::parallel {

// While it exists, waits of this thread in any group also move the messages of `group` (null: none) that send has started.
// Without it, two ranks of one group that wait in other groups can wait for each other: the bytes of a large message move
// only while its sender waits.
class ProgressGuard {
 public:
  explicit ProgressGuard(const ProcessGroup* group);
  ~ProgressGuard();
  ProgressGuard(const ProgressGuard&) = delete;
  ProgressGuard& operator=(const ProgressGuard&) = delete;

  // Moves the messages of the groups of all guards of this thread. Returns whether some are left.
  static bool progress();

 private:
  Backend* backend_;
  ProgressGuard* outer_;
};

}  // namespace lockstep::parallel
