// The messages between the stages of a pipeline: activations to the next stage, their gradients to the previous one. Not
// installed.
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <tuple>
#include <vector>

#include "lockstep/parallel/comm/process_group.h"
#include "lockstep/parallel/schedule/schedule_internal.h"

namespace lockstep::parallel {

// Each message carries the shape of its tensor, so that batches may differ from step to step. Messages of two ranks
// arrive in the order of sending; one that is not wanted yet is kept.
class StageMessages {
 public:
  struct Message {
    Tensor tensor = {};          // undefined: there is none, for example no gradient
    bool requires_grad = false;  // of the tensor that was sent
    // With sequence parallelism: the positions that this rank has of the sequence; 0: all.
    std::int64_t positions = 0;
  };

  StageMessages(std::shared_ptr<ProcessGroup> group, int stages)
      : group_(std::move(group)), sends_(2 * static_cast<std::size_t>(stages)) {}

  // A step begins: messages of one that failed are dropped when they arrive.
  void begin_step();
  // `action` is one of the send kinds. Waits while kMessagesUnderWay earlier ones to the same stage are not received.
  void send(const ScheduleAction& action, const Message& message);
  // `action` is one of the receive kinds. The tensor is on `device`, a leaf, and has the strides of the one that was sent:
  // the bits of a product may depend on them.
  Message receive(const ScheduleAction& action, Device device);
  // Waits until the last messages are received.
  void end_step();
  std::int64_t sent_bytes() const { return sent_bytes_; }  // of tensors, in the last step

 private:
  using Key = std::pair<std::size_t, int>;  // channel, micro-batch
  void take_next(int rank, const ScheduleAction& action, Device device);

  std::shared_ptr<ProcessGroup> group_;
  std::vector<std::deque<std::shared_ptr<Work>>> sends_;  // by channel
  std::map<Key, Message> kept_;
  std::int64_t step_ = 0, sent_bytes_ = 0;
};

}  // namespace lockstep::parallel
