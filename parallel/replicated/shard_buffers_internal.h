// Buffers in a step over shards: every shard sees the values from the start of the step, and only what shard 0 writes is
// kept. Not installed.
#pragma once

#include <optional>
#include <vector>

#include "lockstep/nn/module.h"

namespace lockstep::parallel {

class ShardBuffers {
 public:
  explicit ShardBuffers(const nn::Module& module) : buffers_(module.buffers()) {}

  // Remembers the values, where more than one shard will run here.
  void begin_step(bool several);
  // What the buffers stand for in a shard that is not the first: fresh copies, placed in `view`.
  // They stay on their devices, or go to `device`. Returns their bytes.
  std::int64_t enter(nn::ReplicaView& view, std::optional<Device> device = std::nullopt) const;
  bool empty() const { return buffers_.empty(); }

 private:
  std::vector<nn::Buffer> buffers_;
  std::vector<Tensor> start_;
};

}  // namespace lockstep::parallel
