// Where a step's computation is: what a strategy does around the forward and backward of micro-batches, for example
// gather parameters. Not installed.
#pragma once

#include <compare>
#include <cstdint>

namespace lockstep::parallel {

// A micro-batch in one of this rank's model chunks. Without a pipeline there is chunk 0 alone.
struct MicroBatchPass {
  int micro_batch = 0, chunk = 0;
  friend auto operator<=>(const MicroBatchPass&, const MicroBatchPass&) = default;
};

// A schedule may run a backward in two parts: the gradient of the chunk's input, and later those of its parameters. A
// chunk without an input has no part kInput, and its backward is a whole one.
enum class BackwardPart : std::uint8_t { kWhole, kInput, kWeight };

// Called in this order for each pass of this rank, also for those without samples, in which nothing runs between the
// calls: ranks that communicate here make the same calls. In a pipeline other passes may run between the forward, the
// backward, and the parts of the backward of one.
class MicroBatchObserver {
 public:
  virtual void begin_forward(const MicroBatchPass& /*pass*/) {}
  virtual void end_forward() {}
  virtual void begin_backward(const MicroBatchPass& /*pass*/, BackwardPart /*part*/) {}
  virtual void end_backward() {}
  virtual void skip_backward(const MicroBatchPass& /*pass*/) {}  // in place of the two, in an evaluation
  virtual void end_step() {}                                     // once, after all passes, also after an exception

 protected:
  ~MicroBatchObserver() = default;
};

class NoObserver final : public MicroBatchObserver {};

}  // namespace lockstep::parallel
