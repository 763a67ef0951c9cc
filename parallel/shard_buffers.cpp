#include "lockstep/parallel/shard_buffers.h"

#include "lockstep/tensor/ops.h"

namespace lockstep::inline LOCKSTEP_ABI::parallel {

void ShardBuffers::begin_step(bool several) {
  start_.clear();
  for (const nn::Buffer& buffer : buffers_) {
    if (several) start_.push_back(raw::clone(buffer.master()));
  }
}

void ShardBuffers::enter(nn::ReplicaView& view, std::optional<Device> device) const {
  for (std::size_t b = 0; b < buffers_.size(); ++b) {
    const Tensor copy = raw::clone(start_[b]);
    view.set(buffers_[b].id(), !device || copy.device() == *device ? copy : raw::to(copy, *device));
  }
}

}  // namespace lockstep::inline LOCKSTEP_ABI::parallel
