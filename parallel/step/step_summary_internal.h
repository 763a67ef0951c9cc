// The summary of a step that ranks exchange in the metadata of the first bucket.
#pragma once

#include <cstdint>

#include "lockstep/tensor/tensor.h"

namespace lockstep::parallel {

// The summary of one rank, or the sum over all ranks.
struct StepSummary {
  std::int64_t micro_batches = 1;  // micro-batches that ran
  std::int64_t samples = 0;        // of these micro-batches
  double loss = 0;                 // sum of their losses; in the sum over all ranks times the reduction's `scale`
  int stop = 0;                    // ranks that have requested a stop
  int joined = 0;                  // ranks that have joined: they have no more data

  static constexpr std::int64_t kElements = 5;  // elements of the bucket's dtype
  // Writes to the first kElements of `metadata`, f32 or f64 on the host. Up to 2^24 samples of a rank are exact.
  void write(const Tensor& metadata) const;
  // Reads the sum over at most 1024 ranks, whose elements were multiplied by `scale` = 1 / n, n at most 1024.
  static StepSummary read(const Tensor& metadata, double scale);
};

// Writes one element of a bucket's metadata on the host, without the cost of a tensor operation.
void set_element(const Tensor& metadata, std::int64_t at, double value);
double get_element(const Tensor& metadata, std::int64_t at);  // reads one element

}  // namespace lockstep::parallel
