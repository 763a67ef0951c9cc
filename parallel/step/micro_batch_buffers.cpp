#include "lockstep/parallel/step/micro_batch_buffers_internal.h"

#include "lockstep/tensor/ops/ops_internal.h"

namespace lockstep::parallel {

void MicroBatchBuffers::begin_step(bool several) {
  start_.clear();
  for (const nn::Buffer& buffer : buffers_) {
    if (several) start_.push_back(raw::clone(buffer.master()));
  }
}

std::int64_t MicroBatchBuffers::enter(nn::ReplicaView& view, std::optional<Device> device) const {
  std::int64_t bytes = 0;
  for (std::size_t b = 0; b < buffers_.size(); ++b) {
    const Tensor& start = start_[b];
    view.set(buffers_[b].id(), !device || start.device() == *device ? raw::clone(start) : raw::to(start, *device));
    bytes += start.numel() * static_cast<std::int64_t>(item_size(start.dtype()));
  }
  return bytes;
}

}  // namespace lockstep::parallel
