// A call of join on one rank: ranks that have no more data take part in the other ranks' steps. Not installed.
//
// The step's summary says how many ranks have joined, so there is no message while that number stays the same.
#pragma once

#include "lockstep/parallel/comm/process_group.h"
#include "lockstep/parallel/step/join_options.h"

namespace lockstep::parallel {

class Joining {
 public:
  // Throws CommError, naming `mode`, if ranks have different options. All ranks must call this.
  Joining(const char* mode, const JoinOptions& options, ProcessGroup& group);

  const JoinOptions& options() const { return options_; }
  bool is_out() const { return is_out_; }  // this rank has no more data: it has joined
  void leave() { is_out_ = true; }
  // The first rank that had data in the last step: its buffers are broadcast.
  int buffers_of() const { return buffers_of_; }
  // After a synchronised step, in which `joined` ranks had no data. Throws CommError with throw_on_early_termination.
  void after_step(int joined);
  // Numbers of steps with data, by rank. All ranks must call this.
  std::vector<std::int64_t> steps_of_all() const;

 private:
  const char* mode_;
  const JoinOptions& options_;
  ProcessGroup& group_;
  std::int64_t own_steps_ = 0;  // synchronised steps with data of this rank
  int joined_ = 0;              // ranks that had joined by the last step
  int buffers_of_ = 0;
  bool is_out_ = false;
};

}  // namespace lockstep::parallel
