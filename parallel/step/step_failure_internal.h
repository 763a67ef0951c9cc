// Steps that an exception ends.
#pragma once

#include <algorithm>
#include <exception>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/base/check_internal.h"
#include "lockstep/nn/parameter.h"
#include "lockstep/parallel/comm/process_group.h"

namespace lockstep::parallel {

// The failed steps of a model on this rank.
class StepFailures {
 public:
  // Tells the other ranks of the model's groups, which would wait for the rest of the step. If one of the groups has
  // failed there is no next step, so all fail. Called while `error` is handled; does nothing for an exception that it
  // has been called for already.
  void tell(const std::vector<ProcessGroup*>& groups, const char* op, const std::exception& error) {
    const std::exception_ptr current = std::current_exception();
    if (std::exchange(last_, current) == current) return;
    const bool is_last = std::ranges::any_of(groups, &ProcessGroup::has_failed);
    const std::string why = fmt::format("{}: {}", op, error.what());
    for (ProcessGroup* group : groups) is_last ? group->fail(why) : group->step_failed(why);
  }

 private:
  std::exception_ptr last_;
};

// Several threads may be inside, and a mode has one step at a time.
inline void require_outside_replicas(const char* mode) {
  LOCKSTEP_CHECK(nn::current_replica_view() == nullptr,
                 "{}: cannot be constructed or run inside a DataParallel replica, or inside a step of another mode",
                 mode);
}

// Returns step(). If it throws, calls state.end_failed_step(error) and rethrows.
template <class State, class Step>
auto run_or_end(const char* mode, State& state, const Step& step) {
  require_outside_replicas(mode);
  try {
    return step();
  } catch (const std::exception& error) {
    state.end_failed_step(error);
    throw;
  } catch (...) {
    state.end_failed_step(Error("an exception that is not a std::exception"));
    throw;
  }
}

}  // namespace lockstep::parallel
