/// \file
/// Memory and traffic of a training run, by closed forms.
#pragma once

#include <cstdint>
#include <string>

#include "lockstep/nn/module.h"

namespace lockstep::parallel {

/// Memory and traffic of one rank in bytes, known before the first step. What a mode does not know is 0.
struct TrainingPlan {
  std::int64_t parameter_bytes = 0;  ///< parameters that are always in memory
  std::int64_t gradient_bytes = 0;   ///< gradients that are always in memory, and the sets of several micro-batches
  std::int64_t optimizer_bytes = 0;  ///< state of an optimizer with two buffers per parameter (Adam)
  std::int64_t unit_bytes = 0;       ///< buffers that units share in turn
  std::int64_t padding_bytes = 0;    ///< of parameters, over all ranks: gaps and padding of the flat buffers
  std::int64_t bytes_per_step = 0;   ///< sent by this rank, without clipping and module buffers
  std::int64_t gather_bytes = 0;     ///< of these, by all-gathers of parameters
  std::int64_t reduce_bytes = 0;     ///< of these, by reduce-scatters of gradients
  std::int64_t summary_bytes = 0;    ///< of these, by the all-reduce of the step's summary
  std::int64_t offload_bytes = 0;    ///< copied between device and host in a step; not sent
  std::string units = {};            ///< one line per unit

  /// The sum of the first four.
  std::int64_t memory_bytes() const { return parameter_bytes + gradient_bytes + optimizer_bytes + unit_bytes; }
  std::string to_string() const;  ///< a table
};

inline constexpr std::int64_t kOptimizerBuffers = 2;  ///< of each parameter, for Adam
/// The memory of a mode that keeps the whole model and runs `micro_batches` in turn.
TrainingPlan replicated_plan(const nn::Module& module, int micro_batches);
/// The bytes that rank `rank` of `ranks` sends in a canonical all_reduce of `elements` of `item_bytes` each: its elements
/// to the owners of the ranges, and its own range's sums to all.
std::int64_t all_reduce_bytes(std::int64_t elements, std::int64_t item_bytes, int rank, int ranks);

}  // namespace lockstep::parallel
