// Buffers in a step over micro-batches: every micro-batch sees the values from the start of the step, and only what
// micro-batch 0 writes is kept. Not installed.
#pragma once

#include <optional>
#include <vector>

#include "lockstep/nn/module.h"

namespace lockstep::parallel {

class MicroBatchBuffers {
 public:
  explicit MicroBatchBuffers(const nn::Module& module) : buffers_(module.buffers()) {}

  // Remembers the values, where more than one micro-batch will run here.
  void begin_step(bool several);
  // What the buffers stand for in a micro-batch that is not the first: fresh copies, placed in `view`.
  // They stay on their devices, or go to `device`. Returns their bytes.
  std::int64_t enter(nn::ReplicaView& view, std::optional<Device> device = std::nullopt) const;
  bool empty() const { return buffers_.empty(); }

 private:
  std::vector<nn::Buffer> buffers_;
  std::vector<Tensor> start_;
};

}  // namespace lockstep::parallel
