// The plan of the buckets: the parameters of each, and their offsets in it. Not installed.
#pragma once

#include <cstdint>
#include <vector>

#include "lockstep/nn/parameter.h"

namespace lockstep::parallel {

// One bucket: gradients of one dtype and device, each aligned to 64 bytes, then metadata: in the first bucket the
// step's summary, then in every bucket a flag for each parameter: 1 if the rank used it. Gradients of f16 and bf16
// parameters are stored as f32.
struct BucketLayout {
  std::vector<std::size_t> parameters;     // positions in the list of parameters
  std::vector<std::int64_t> offsets = {};  // of each parameter, in elements
  std::int64_t metadata = 0;               // offset of the metadata
  std::int64_t used = 0;                   // offset of the flags within the metadata
  std::int64_t elements = 0;               // in all, with the metadata
};

// Returns buckets in the order in which gradients are likely to be complete: parameters from the last to the first. A
// bucket ends before a parameter of another dtype or device, and before one that would exceed its limit: `first_bytes`
// for the first bucket, so that communication starts early, `bytes` for the others.
std::vector<BucketLayout> plan_buckets(const std::vector<nn::Parameter>& parameters, std::int64_t first_bytes,
                                       std::int64_t bytes);

}  // namespace lockstep::parallel
