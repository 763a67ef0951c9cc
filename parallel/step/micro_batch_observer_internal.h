// Where a step's computation is: what a strategy does around the forward and backward of micro-batches, for example
// gather parameters. Not installed.
#pragma once

namespace lockstep::parallel {

// Called in this order, for each micro-batch of this rank, also for those without samples, in which nothing runs between
// the calls: ranks that communicate here make the same calls.
class MicroBatchObserver {
 public:
  virtual void begin_forward() {}
  virtual void end_forward() {}
  virtual void begin_backward() {}
  virtual void end_backward() {}
  virtual void skip_backward() {}  // in place of the two, in an evaluation
  virtual void end_step() {}       // once, after all micro-batches, also after an exception

 protected:
  ~MicroBatchObserver() = default;
};

class NoObserver final : public MicroBatchObserver {};

}  // namespace lockstep::parallel
