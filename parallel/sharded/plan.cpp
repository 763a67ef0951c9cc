// Memory and traffic of a ShardedDataParallel, by closed forms: nothing here looks at what was allocated or sent.
#include "lockstep/base/check_internal.h"
#include "lockstep/base/trace.h"
#include "lockstep/parallel/sharded/sharded_state_internal.h"

namespace lockstep::parallel {
namespace {

// Of all ranks together.
struct UnitBytes {
  std::int64_t parameters = 0, trained = 0, used = 0;  // gathered parameters
  std::int64_t masters = 0, frozen_masters = 0;        // in another dtype than the gathered parameters
  std::int64_t gradients = 0;                          // as they are summed
};

UnitBytes bytes_of(const UnitLayout& unit, const optim::NamedParameters& named) {
  UnitBytes bytes;
  for (const FlatLayout& flat : unit.flats) {
    bytes.parameters += flat.bytes();
    if (flat.master != flat.dtype) (flat.trained ? bytes.masters : bytes.frozen_masters) += flat.bytes_in(flat.master);
    bytes.trained += flat.trained ? flat.bytes() : 0;
    bytes.gradients += flat.trained ? flat.bytes_in(flat.gradient) : 0;
    for (const std::size_t p : flat.parameters) bytes.used += lockstep::parallel::bytes_of(named[p].second.master());
  }
  return bytes;
}

}  // namespace

// docs/parallel.md derives the forms. n ranks; bytes of a unit with its padding.
TrainingPlan ShardedDataParallel::State::plan() const {
  const std::int64_t n = group->size();
  TrainingPlan plan;
  std::int64_t largest_parameters = 0, largest_gradients = 0, sent = 0;
  for (std::size_t u = 0; u < layouts.size(); ++u) {
    const UnitBytes unit = bytes_of(layouts[u], named);
    plan.parameter_bytes += is_resident() ? unit.parameters : unit.parameters / n;
    plan.parameter_bytes += (unit.frozen_masters + (is_offloaded() ? 0 : unit.masters)) / n;
    plan.gradient_bytes += is_rotating() ? unit.gradients / n : unit.gradients;
    plan.padding_bytes += unit.parameters - unit.used;
    const bool is_root = u == 0;
    if (!is_resident() && is_root) plan.unit_bytes += unit.parameters;
    if (is_rotating() && is_root) plan.unit_bytes += unit.gradients;
    if (!is_root) {
      largest_parameters = std::max(largest_parameters, unit.parameters);
      largest_gradients = std::max(largest_gradients, unit.gradients);
    }
    const std::int64_t times = is_resident() ? 1 : gathers->gathers_of(u, options.micro_batches_per_rank);
    sent += times * (is_resident() ? unit.trained : unit.parameters) / n;
    plan.reduce_bytes += unit.gradients / n * (n - 1);
    plan.offload_bytes += is_offloaded() ? (unit.trained + unit.gradients) / n : 0;
  }
  for (const TrainedPiece& piece : gradients->pieces()) {
    const std::int64_t bytes = lockstep::parallel::bytes_of(piece.parameter.master());
    plan.optimizer_bytes += kOptimizerBuffers * bytes;
    const FlatLayout& layout = trained[piece.flat]->layout;
    if (layout.gradient != layout.master && !is_offloaded())
      plan.gradient_bytes += bytes;  // converted for the optimizer
  }
  plan.gather_bytes = sent * (n - 1);
  const auto shared = static_cast<std::int64_t>(std::min<std::size_t>(2, layouts.size() - 1));
  if (!is_resident()) plan.unit_bytes += shared * largest_parameters;
  if (is_rotating()) plan.unit_bytes += largest_gradients;
  plan.gradient_bytes += set_bytes();
  plan.summary_bytes =
      all_reduce_bytes(gradients->summary_elements(), static_cast<std::int64_t>(item_size(gradients->dtype())),
                       group->rank(), group->size());
  plan.bytes_per_step = plan.gather_bytes + plan.reduce_bytes + plan.summary_bytes;
  return plan;
}

// The sets of the canonical sum over micro-batches, without gaps. The first one is in the units' buffers, unless these
// have another dtype than the gathered parameters' gradients or than sums.
std::int64_t ShardedDataParallel::State::set_bytes() const {
  if (options.micro_batches_per_rank == 1) return 0;
  std::int64_t bytes = 0;
  for (std::size_t p = 0; p < gradients->size(); ++p) {
    const Tensor& leaf = gradients->leaf(p);
    const DType dtype = sum_dtype(leaf.dtype());
    const DType of_buffer = gradients->flats()[gradients->place_of(p).first].layout.gradient;
    const bool first_in_buffer = leaf.dtype() == dtype && of_buffer == dtype;
    const int sets = GradientSets::additional(options.micro_batches_per_rank) + (first_in_buffer ? 0 : 1);
    bytes += sets * leaf.numel() * static_cast<std::int64_t>(item_size(dtype));
  }
  return bytes;
}

// The values of the plan, as events at the start of a step.
void ShardedDataParallel::State::trace_plan() const {
  if (!is_tracing()) return;
  const TrainingPlan own = plan();
  trace_event(TraceKind::kPlan, "planned memory", TraceTime::now(), {.bytes = own.memory_bytes()});
  trace_event(TraceKind::kPlan, "planned parameters", TraceTime::now(), {.bytes = own.gather_bytes});
  trace_event(TraceKind::kPlan, "planned gradients", TraceTime::now(), {.bytes = own.reduce_bytes + own.summary_bytes});
}

TrainingPlan ShardedDataParallel::plan() const {
  TrainingPlan plan = state_->plan();
  for (std::size_t u = 0; u < state_->units.size(); ++u) {
    const UnitBytes unit = bytes_of(state_->layouts[u], state_->named);
    plan.units += fmt::format("  {:<24}{:>14}{:>14}\n", state_->units[u].name(), unit.parameters, unit.gradients);
  }
  return plan;
}

}  // namespace lockstep::parallel
