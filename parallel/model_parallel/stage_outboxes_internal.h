// Outboxes of stages: memory in which a rank leaves a message and from which the receiver copies it, while the sender
// computes. Not installed.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "lockstep/parallel/comm/process_group.h"
#include "lockstep/parallel/schedule/schedule_internal.h"

namespace lockstep::parallel {

inline Phase phase_of(const StageChannel& channel) {
  return channel.is_backward ? Phase::kActivationGradients : Phase::kActivations;
}

// Each channel has kMessagesUnderWay slots in the communication memory of its sender. The sender fills a slot, and says
// so by a message; the receiver copies the tensor, and says by a message that the slot is free. These messages order the
// accesses to a slot. There are none, and no slot is used, on ranks that do not share memory.
class StageOutboxes {
 public:
  StageOutboxes(std::shared_ptr<ProcessGroup> group, int stages);

  // Bytes that slots must have for the tensors that can_hold has been asked for.
  std::int64_t wanted_bytes() const { return wanted_bytes_; }
  // Gives the slots at least `bytes`. All ranks call it with the same number, while all slots are free.
  void grow(std::int64_t bytes);
  std::int64_t bytes() const { return slot_bytes_ == 0 ? 0 : slots() * slot_bytes_; }  // of this rank's memory

  // For the sender of a channel. `tensor` is dense, but its dimensions may be in another order in memory.
  bool can_hold(const Tensor& tensor);
  bool is_full(const StageChannel& channel) const { return under_way(channel) == kMessagesUnderWay; }
  bool is_free(const StageChannel& channel) const { return under_way(channel) == 0; }
  void put(const StageChannel& channel, const Tensor& tensor, const std::string& name);
  void free_oldest(const StageChannel& channel);
  // For its receiver: copies the oldest tensor that it has not taken.
  void take(const StageChannel& channel, const Tensor& to);

 private:
  // Numbers of messages so far. `filled` and `freed` are known to the sender, `taken` to the receiver.
  struct Counts {
    std::int64_t filled = 0, freed = 0, taken = 0;
  };
  std::int64_t under_way(const StageChannel& channel) const {
    return counts_[channel.index()].filled - counts_[channel.index()].freed;
  }
  std::int64_t slots() const { return 2 * ((stages_ + group_->size() - 1) / group_->size()) * kMessagesUnderWay; }
  std::int64_t slot(const StageChannel& channel, std::int64_t message) const;
  Tensor view(const Tensor& memory, std::int64_t slot, const Tensor& like) const;

  std::shared_ptr<ProcessGroup> group_;
  int stages_;
  std::vector<Counts> counts_;  // by channel
  std::vector<Tensor> memory_;  // by rank: all its slots
  std::int64_t slot_bytes_ = 0, wanted_bytes_ = 0;
  bool shares_memory_ = true;  // until `grow` has found that ranks do not
};

}  // namespace lockstep::parallel
