// Memory and traffic of a ShardedDataParallel, by closed forms: nothing here looks at what was allocated or sent.
#include <bit>

#include "lockstep/parallel/sharded/sharded_state_internal.h"
#include "lockstep/tensor/check_internal.h"

namespace lockstep::parallel {
namespace {

constexpr std::int64_t kStateBuffers = 2;  // of Adam

// Of all ranks together.
struct UnitBytes {
  std::int64_t parameters = 0, trained = 0, used = 0;  // gathered parameters
  std::int64_t masters = 0, trained_masters = 0;       // those of other dtypes that optimizers step; all trained ones
  std::int64_t gradients = 0, widened = 0;             // as they are summed; as optimizers read them, if converted
};

UnitBytes bytes_of(const UnitLayout& unit, const NamedParameters& named) {
  UnitBytes bytes;
  for (const FlatLayout& flat : unit.flats) {
    bytes.parameters += flat.bytes();
    bytes.masters += flat.master != flat.dtype ? flat.bytes_in(flat.master) : 0;
    if (flat.trained) {
      bytes.trained += flat.bytes();
      bytes.trained_masters += flat.bytes_in(flat.master);
      bytes.gradients += flat.bytes_in(flat.gradient);
      bytes.widened += flat.gradient != flat.master ? flat.bytes_in(flat.master) : 0;
    }
    for (const std::size_t p : flat.parameters) bytes.used += lockstep::parallel::bytes_of(named[p].second.master());
  }
  return bytes;
}

}  // namespace

// docs/parallel.md derives the forms. n ranks, M micro-batches per rank; bytes of a unit with its padding.
ShardedPlan ShardedDataParallel::State::plan() const {
  const std::int64_t n = group->size(), m = options.micro_batches_per_rank;
  ShardedPlan plan;
  std::int64_t largest_parameters = 0, largest_gradients = 0, sent = 0;
  for (std::size_t u = 0; u < layouts.size(); ++u) {
    const UnitBytes unit = bytes_of(layouts[u], named);
    plan.parameter_bytes += (is_resident() ? unit.parameters : unit.parameters / n) + unit.masters / n;
    plan.gradient_bytes += (is_rotating() ? unit.gradients / n : unit.gradients) + unit.widened / n;
    plan.optimizer_bytes += kStateBuffers * unit.trained_masters / n;
    plan.padding_bytes += unit.parameters - unit.used;
    const bool is_root = u == 0, is_last = u + 1 == layouts.size();
    if (!is_resident() && is_root) plan.unit_bytes += unit.parameters;
    if (is_rotating() && is_root) plan.unit_bytes += unit.gradients;
    if (!is_root) {
      largest_parameters = std::max(largest_parameters, unit.parameters);
      largest_gradients = std::max(largest_gradients, unit.gradients);
    }
    const std::int64_t gathers = is_resident() ? 1 : is_root || is_last ? m : 2 * m;
    sent += gathers * (is_resident() ? unit.trained : unit.parameters) / n;
    plan.reduce_bytes += unit.gradients / n * (n - 1);
    plan.offload_bytes += is_offloaded() ? (unit.trained + unit.gradients) / n : 0;
    plan.units += fmt::format("  {:<24}{:>14}{:>14}\n", units[u].name(), unit.parameters, unit.gradients);
  }
  plan.gather_bytes = sent * (n - 1);
  const auto shared = static_cast<std::int64_t>(std::min<std::size_t>(2, layouts.size() - 1));
  if (!is_resident()) plan.unit_bytes += shared * largest_parameters;
  if (is_rotating()) plan.unit_bytes += largest_gradients;
  if (m > 1)
    plan.gradient_bytes += static_cast<std::int64_t>(std::bit_width(static_cast<std::uint64_t>(m - 1))) * set_bytes();
  plan.summary_bytes = summary_bytes();
  plan.bytes_per_step = plan.gather_bytes + plan.reduce_bytes + plan.summary_bytes;
  return plan;
}

// Gradients of the trained parameters, without gaps: a set of the canonical sum over micro-batches.
std::int64_t ShardedDataParallel::State::set_bytes() const {
  std::int64_t bytes = 0;
  for (std::size_t p = 0; p < gradients->size(); ++p)
    bytes += gradients->leaf(p).numel() * static_cast<std::int64_t>(item_size(sum_dtype(gradients->leaf(p).dtype())));
  return bytes;
}

// The bytes that this rank sends in the all-reduce of the summary: its elements to the owners of the ranges, and its
// own range's sums to all.
std::int64_t ShardedDataParallel::State::summary_bytes() const {
  const std::int64_t n = group->size(), r = group->rank(), count = summary.numel();
  const std::int64_t own = count * (r + 1) / n - count * r / n;
  return (count - own + own * (n - 1)) * static_cast<std::int64_t>(item_size(summary.dtype()));
}

ShardedPlan ShardedDataParallel::plan() const { return state_->plan(); }

std::string ShardedPlan::to_string() const {
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
