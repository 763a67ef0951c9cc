// Which parameters share a bucket, and where in it they stand. Not installed.
#pragma once

#include <cstdint>
#include <vector>

#include "lockstep/nn/parameter.h"

namespace lockstep::parallel {

// One bucket: gradients of one dtype and device, each starting on 64 bytes, then metadata: in the first bucket the step's
// summary, then for each parameter whether it was used. Gradients of f16 and bf16 parameters are stored as f32.
struct BucketLayout {
  std::vector<std::size_t> parameters;     // positions in the list of parameters
  std::vector<std::int64_t> offsets = {};  // of each, in elements
  std::int64_t metadata = 0;               // where the metadata starts
  std::int64_t used = 0;                   // within the metadata: where the parameters' flags start
  std::int64_t elements = 0;               // with the metadata
};

// Buckets in the order in which gradients are likely to be complete: parameters from the last to the first. A bucket is
// closed before a parameter of another dtype or device, and before one that would take it past its limit: `first_bytes`
// for the first bucket, so that communication starts early, `bytes` for the others.
std::vector<BucketLayout> plan_buckets(const std::vector<nn::Parameter>& parameters, std::int64_t first_bytes,
                                       std::int64_t bytes);

}  // namespace lockstep::parallel
