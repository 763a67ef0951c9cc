// Buffers in a step over micro-batches: every micro-batch reads the values from the start of the step, and only the
// writes of micro-batch 0 are kept. Not installed.
#pragma once

#include <optional>
#include <vector>

#include "lockstep/nn/module.h"

namespace lockstep::parallel {

class MicroBatchBuffers {
 public:
  explicit MicroBatchBuffers(const nn::Module& module) : buffers_(module.buffers()) {}

  // Saves the values if more than one micro-batch will run here.
  void begin_step(bool several);
  // Enters copies of the saved values in `view`, for a micro-batch other than the first. The copies are on the
  // buffers' devices, or on `device`. Returns their bytes.
  std::int64_t enter(nn::ReplicaView& view, std::optional<Device> device = std::nullopt) const;
  bool empty() const { return buffers_.empty(); }

 private:
  std::vector<nn::Buffer> buffers_;
  std::vector<Tensor> start_;
};

}  // namespace lockstep::parallel
