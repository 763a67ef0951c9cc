#include "lockstep/parallel/step/plan.h"

#include "lockstep/base/check_internal.h"
#include "lockstep/parallel/step/gradient_sets_internal.h"
#include "lockstep/parallel/step/micro_batch_internal.h"

namespace lockstep::parallel {

// The gradients of micro-batches in turn are in sets besides the sum (gradient_sets_internal.h).
TrainingPlan replicated_plan(const nn::Module& module, int micro_batches) {
  TrainingPlan plan;
  for (const nn::Parameter& parameter : module.parameters()) plan.parameter_bytes += bytes_of(parameter.master());
  plan.gradient_bytes = (1 + GradientSets::additional(micro_batches)) * plan.parameter_bytes;
  plan.optimizer_bytes = kOptimizerBuffers * plan.parameter_bytes;
  return plan;
}

std::int64_t all_reduce_bytes(std::int64_t elements, std::int64_t item_bytes, int rank, int ranks) {
  const std::int64_t own = elements * (rank + 1) / ranks - elements * rank / ranks;
  return (elements - own + own * (ranks - 1)) * item_bytes;
}

std::string TrainingPlan::to_string() const {
  const auto line = [](const char* what, std::int64_t bytes, const char* note) {
    return fmt::format("  {:<24}{:>14}  {}\n", what, bytes, note);
  };
  return "memory of this rank, bytes\n" + line("parameters", parameter_bytes, "") +
         line("gradients", gradient_bytes, "") +
         line("optimizer state", optimizer_bytes, "with two buffers per parameter (Adam)") +
         line("unit buffers", unit_bytes, "") + line("padding", padding_bytes, "of all ranks' parameters") +
         "sent by this rank in a step, bytes\n" + line("all_gather", gather_bytes, "parameters") +
         line("reduce_scatter", reduce_bytes, "gradients") +
         line("all_reduce", summary_bytes, "loss, used parameters") +
         line("copied to or from cpu:0", offload_bytes, "not sent") +
         fmt::format("units{:>35}{:>14}\n", "parameters", "gradients") + units;
}

}  // namespace lockstep::parallel
