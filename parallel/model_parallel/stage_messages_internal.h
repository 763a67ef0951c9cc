// The messages between the stages of a pipeline: activations to the next stage, their gradients to the previous one. Not
// installed.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/parallel/comm/process_group.h"
#include "lockstep/parallel/model_parallel/stage_outboxes_internal.h"
#include "lockstep/parallel/schedule/schedule_internal.h"

namespace lockstep::parallel {

// Each message carries the shape of its tensor, so that batches may differ from step to step. Messages of two ranks
// arrive in the order of sending; one that is not wanted yet is kept. A tensor that fits is sent through an outbox:
// without one, a message of shm or local moves only while its sender waits. After an exception in a step the group must
// not be used again, since messages of that step may be on their way.
class StageMessages {
 public:
  struct Message {
    Tensor tensor = {};          // undefined: there is none, for example no gradient
    bool requires_grad = false;  // of the tensor that was sent
    // With sequence parallelism: the positions that this rank has of the sequence; 0: all.
    std::int64_t positions = 0;
  };

  StageMessages(std::shared_ptr<ProcessGroup> group, int stages);

  void begin_step() { sent_bytes_ = 0; }
  // `action` is one of the send kinds. Waits while kMessagesUnderWay earlier ones to the same stage are not received.
  void send(const ScheduleAction& action, const Message& message);
  // `action` is one of the receive kinds. The tensor is on `device`, a leaf, and has the strides of the one that was sent:
  // the bits of a product may depend on them.
  Message receive(const ScheduleAction& action, Device device);
  // Waits until the last messages are received.
  void end_step();
  std::int64_t sent_bytes() const { return sent_bytes_; }  // of tensors, in the last step

  // For all ranks after a step: the largest of wanted_bytes() is the size of the outboxes from then on.
  std::int64_t wanted_bytes() const { return outboxes_.wanted_bytes(); }
  void grow_outboxes(std::int64_t bytes) { outboxes_.grow(bytes); }
  std::int64_t outbox_bytes() const { return outboxes_.bytes(); }  // memory of this rank

 private:
  using Key = std::pair<std::size_t, int>;  // channel, micro-batch
  struct Header;
  std::shared_ptr<Work> send_header(const Header& header, int to, const std::string& name);
  void wait_for_slot(const StageChannel& channel, const std::string& name);
  void take_next(int rank, const std::string& name, Device device);

  std::shared_ptr<ProcessGroup> group_;
  StageOutboxes outboxes_;
  std::vector<std::deque<std::shared_ptr<Work>>> sends_;  // by channel: of tensors without an outbox
  std::map<Key, Message> kept_;
  std::int64_t sent_bytes_ = 0;
};

}  // namespace lockstep::parallel
