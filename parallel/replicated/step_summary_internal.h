// What ranks tell each other about a step. The first bucket carries it behind its gradients; it is written and read here
// only.
#pragma once

#include <cstdint>

#include "lockstep/tensor/tensor.h"

namespace lockstep::parallel {

// Of one rank, or the sum over all ranks.
struct StepSummary {
  std::int64_t micro_batches = 1;  // that were run
  std::int64_t samples = 0;        // in these micro-batches
  double loss = 0;                 // the sum of their losses; of all ranks: times the `scale` of the reduction
  int stop = 0;                    // ranks that have requested a stop
  int joined = 0;                  // ranks that are out of data

  static constexpr std::int64_t kElements = 5;  // of the bucket's dtype
  // Writes to the first kElements of `metadata`, f32 or f64 on the host. At most 2^24 samples a rank are exact.
  void write(const Tensor& metadata) const;
  // Reads the sum over at most 1024 ranks, each of whose elements was multiplied by `scale`, 1 / n with n up to 1024.
  static StepSummary read(const Tensor& metadata, double scale);
};

// One element of a bucket's metadata, on the host, without the cost of an operation.
void set_element(const Tensor& metadata, std::int64_t at, double value);
double get_element(const Tensor& metadata, std::int64_t at);  // see set_element

}  // namespace lockstep::parallel
