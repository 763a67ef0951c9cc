// Buffers in a step over micro-batches: every micro-batch reads the values from the start of the step, and only the
// writes of micro-batch 0 are kept, except for running statistics that all micro-batches update. Not installed.
#pragma once

#include <optional>
#include <vector>

#include "lockstep/nn/layers/norm_layers.h"
#include "lockstep/nn/module.h"

namespace lockstep::parallel {

class ProcessGroup;

class MicroBatchBuffers {
 public:
  explicit MicroBatchBuffers(nn::Module& module);

  // Saves the values if more than one micro-batch will run here.
  void begin_step(int running);
  // Enters copies of the saved values in `view`, for a micro-batch other than the first. The copies are on the
  // buffers' devices, or on `device`. Returns their bytes.
  std::int64_t enter(nn::ReplicaView& view, std::optional<Device> device = std::nullopt) const;
  bool empty() const { return buffers_.empty(); }

  // The layers whose running statistics all micro-batches update (BatchNormOptions::all_micro_batches).
  bool has_updates() const { return !layers_.empty(); }
  // Enters the updates of micro-batch s in `view`. Several threads may call this, for different s.
  void enter_updates(int s, nn::ReplicaView& view, std::optional<Device> device = std::nullopt);
  // body(), a forward that the user calls, whose updates are those of micro-batch 0.
  Tensor call(FunctionRef<Tensor()> body);
  // Updates the buffers by those of all micro-batches, in ascending order, and forgets them. With a group its ranks'
  // micro-batches, `per_rank` each, follow one another; all ranks must call this.
  void apply_updates(ProcessGroup* group = nullptr, int per_rank = 1);
  void drop_updates() { updates_.clear(); }

 private:
  const std::vector<Tensor>& updates_of(int s, std::optional<Device> device);

  std::vector<nn::Buffer> buffers_;
  std::vector<Tensor> start_;
  std::vector<const nn::BatchNorm*> layers_;
  std::vector<std::vector<Tensor>> updates_;  // by micro-batch that has begun, and layer
};

}  // namespace lockstep::parallel
