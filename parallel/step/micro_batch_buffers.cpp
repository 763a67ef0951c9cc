#include "lockstep/parallel/step/micro_batch_buffers_internal.h"

#include <algorithm>

#include "lockstep/base/finally_internal.h"
#include "lockstep/nn/layers/batch_norm_internal.h"
#include "lockstep/parallel/comm/process_group.h"
#include "lockstep/tensor/ops/ops_internal.h"

namespace lockstep::parallel {

using nn::BatchNormAccess;

MicroBatchBuffers::MicroBatchBuffers(nn::Module& module) : buffers_(module.buffers()) {
  for (const nn::Module* const each : module.modules()) {
    const auto* const layer = dynamic_cast<const nn::BatchNorm*>(each);
    if (layer && BatchNormAccess::adds_updates(*layer)) layers_.push_back(layer);
  }
}

void MicroBatchBuffers::begin_step(int running) {
  start_.clear();
  for (const nn::Buffer& buffer : buffers_) {
    if (running > 1) start_.push_back(raw::clone(buffer.master()));
  }
  updates_.assign(static_cast<std::size_t>(running), {});
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

const std::vector<Tensor>& MicroBatchBuffers::updates_of(int s, std::optional<Device> device) {
  std::vector<Tensor>& updates = updates_[static_cast<std::size_t>(s)];
  for (std::size_t l = updates.size(); l < layers_.size(); ++l) {
    const Tensor& running = layers_[l]->running_mean.master();
    updates.push_back(raw::zeros(
        {BatchNormAccess::elements(*layers_[l])},
        {.dtype = running.dtype() == kFloat64 ? kFloat64 : kFloat32, .device = device.value_or(running.device())}));
  }
  return updates;
}

void MicroBatchBuffers::enter_updates(int s, nn::ReplicaView& view, std::optional<Device> device) {
  const std::vector<Tensor>& updates = updates_of(s, device);
  for (std::size_t l = 0; l < layers_.size(); ++l) view.set(BatchNormAccess::update(*layers_[l]).id(), updates[l]);
}

// Not by a view: checkpoint would enter it again in a backward after this.
Tensor MicroBatchBuffers::call(FunctionRef<Tensor()> body) {
  if (layers_.empty()) return body();
  updates_.resize(1);
  const std::vector<Tensor>& updates = updates_of(0, std::nullopt);
  for (std::size_t l = 0; l < layers_.size(); ++l) BatchNormAccess::update(*layers_[l]).set_master(updates[l]);
  const Finally leave([this] {
    for (const nn::BatchNorm* const layer : layers_) BatchNormAccess::update(*layer).set_master(Tensor());
  });
  return body();
}

void MicroBatchBuffers::apply_updates(ProcessGroup* group, int per_rank) {
  if (layers_.empty()) return;
  std::int64_t elements = 0;
  for (const nn::BatchNorm* const layer : layers_) elements += BatchNormAccess::elements(*layer);
  const bool is_gathered = group && group->size() > 1;
  const auto own = static_cast<std::int64_t>(updates_.size());
  Tensor rows = raw::zeros({is_gathered ? per_rank : own, elements}, {.dtype = kFloat64});
  for (std::int64_t s = 0; s < own; ++s) {
    std::int64_t first = 0;
    for (const Tensor& update : updates_[static_cast<std::size_t>(s)]) {
      rows[s].narrow(0, first, update.numel()).copy_(update);
      first += update.numel();
    }
  }
  updates_.clear();
  if (is_gathered) {
    const Device device = layers_[0]->running_mean.master().device();
    const Tensor all = raw::empty({group->size() * per_rank, elements}, {.dtype = kFloat64, .device = device});
    group->all_gather(all, raw::to(rows, device), {.phase = Phase::kBuffers, .name = "batch statistics"})->wait();
    rows = raw::to(all, Device());
  }
  for (std::int64_t s = 0; s < rows.size(0); ++s) {
    std::int64_t first = 0;
    for (const nn::BatchNorm* const layer : layers_) {
      const std::int64_t count = BatchNormAccess::elements(*layer);
      BatchNormAccess::apply(*layer, rows[s].narrow(0, first, count));
      first += count;
    }
  }
}

}  // namespace lockstep::parallel
