// The plan of the buckets: the parameters of each, and their offsets in it. Not installed.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/optim/optimizer.h"

namespace lockstep::parallel {

// One bucket: gradients of one dtype and device, each aligned to 64 bytes, then metadata: in the first bucket the
// step's summary (unless it is sent apart), then in every bucket a flag for each parameter: 1 if the rank used it.
// Gradients of f16 and bf16 parameters are stored as f32.
struct BucketLayout {
  std::vector<std::size_t> parameters;     // positions in the list of parameters
  std::vector<std::int64_t> offsets = {};  // of each parameter, in elements
  std::int64_t metadata = 0;               // offset of the metadata
  std::int64_t used = 0;                   // offset of the flags within the metadata
  std::int64_t elements = 0;               // in all, with the metadata

  bool operator==(const BucketLayout&) const = default;
};

// `parameters` have their names in the model: "fc1.weight" is one of the module "fc1".
// Returns buckets in the order in which their gradients become ready. `order` lists the parameters in that order as
// far as it is known. The gradients of a module become ready at about the same time, so its parameters stay together,
// in the place of the last one, unless they alone exceed `bytes`. A bucket ends before parameters of another dtype or
// device, and before those that would exceed its limit: `first_bytes` for the first bucket, so that communication
// starts early, `bytes` for the others.
std::vector<BucketLayout> plan_buckets(const optim::NamedParameters& parameters, std::vector<std::size_t> order,
                                       std::int64_t first_bytes, std::int64_t bytes, bool has_summary = true);
// The order that is likely: from the last parameter to the first.
std::vector<std::size_t> last_to_first(std::size_t parameters);

}  // namespace lockstep::parallel
