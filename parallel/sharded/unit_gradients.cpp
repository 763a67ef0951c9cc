#include "lockstep/parallel/sharded/unit_gradients_internal.h"

#include <algorithm>

#include "lockstep/autograd/history_internal.h"
#include "lockstep/base/check_internal.h"
#include "lockstep/base/trace.h"
#include "lockstep/parallel/comm/backend_internal.h"
#include "lockstep/parallel/sharded/unit_parameters_internal.h"
#include "lockstep/parallel/step/micro_batch_internal.h"
#include "lockstep/parallel/step/typed_memory_internal.h"
#include "lockstep/tensor/ops/ops_internal.h"

namespace lockstep::parallel {

UnitGradients::UnitGradients(const std::vector<UnitLayout>& units, const optim::NamedParameters& parameters,
                             std::shared_ptr<ProcessGroup> group, const Options& options)
    : group_(std::move(group)), options_(options), units_(units.size()) {
  std::vector<std::size_t> slot_of(parameters.size());
  for (std::size_t k = 0; k < parameters.size(); ++k) {
    const auto& [name, parameter] = parameters[k];
    slot_of[k] = slots_.size();
    if (parameter.master().requires_grad()) slots_.push_back({.name = name, .leaf = parameter.master(), .position = k});
  }
  for (std::size_t u = 0; u < units.size(); ++u) {
    units_[u].name = units[u].text();
    for (const FlatLayout& layout : units[u].flats) {
      if (!layout.trained) continue;
      for (std::size_t k = 0; k < layout.parameters.size(); ++k) {
        const std::size_t p = slot_of[layout.parameters[k]];
        Slot& slot = slots_[p];
        slot.unit = u;
        slot.flat = flats_.size();
        slot.offset = layout.offsets[k];
        units_[u].slots.push_back(p);
        units_[u].stats.parameters.push_back(slot.name);
      }
      units_[u].flats.push_back(flats_.size());
      flats_.push_back({.unit = u, .layout = layout});
      units_[u].stats.bytes += layout.bytes_in(layout.gradient);
    }
  }
  allocate();
  summary_ = group_->empty({StepSummary::kElements + static_cast<std::int64_t>(size())}, sum_dtype(leaf(0).dtype()));
}

UnitGradients::~UnitGradients() {
  for (const Slot& slot : slots_) autograd::set_gradient_view(slot.leaf, Tensor());
}

void UnitGradients::allocate() {
  const auto empty = [&](std::int64_t elements, DType dtype, Device device) {
    const Tensor memory = group_->empty({elements}, dtype, device);
    raw::fill(memory, 0);  // the gaps are reduced as well
    return memory;
  };
  std::int64_t largest = 0;
  for (FlatGradients& flat : flats_) {
    const FlatLayout& layout = flat.layout;
    const std::int64_t each = layout.elements / group_->size();
    if (options_.rotating) flat.shard = empty(each, layout.gradient, layout.device);
    if (options_.rotating && flat.unit != 0) {
      largest = std::max(largest, units_[flat.unit].stats.bytes);
      continue;
    }
    flat.whole = empty(layout.elements, layout.gradient, layout.device);
    if (!options_.rotating) flat.shard = elements_of(flat.whole, each * group_->rank(), each);
  }
  for (std::size_t u = 0; u < units_.size(); ++u) {
    units_[u].has_buffer = !options_.rotating || u == 0;
    if (units_[u].has_buffer) set_views(u);
  }
  if (largest > 0) shared_ = empty(largest, kUInt8, flats_.back().layout.device);
}

void UnitGradients::set_pieces(std::vector<TrainedPiece> pieces, bool offloaded) {
  pieces_ = std::move(pieces);
  offloaded_ = offloaded;
}

std::vector<Tensor> UnitGradients::views() const {
  std::vector<Tensor> views;
  for (const Slot& slot : slots_)
    views.push_back(slot.view.defined() && slot.view.dtype() == slot.leaf.dtype() ? slot.view : Tensor());
  return views;
}

void UnitGradients::set_views(std::size_t unit) {
  for (const std::size_t p : units_[unit].slots) {
    Slot& slot = slots_[p];
    slot.view = raw::view(elements_of(flats_[slot.flat].whole, slot.offset, slot.leaf.numel()), slot.leaf.shape());
    if (slot.view.dtype() == slot.leaf.dtype()) autograd::set_gradient_view(slot.leaf, slot.view);
  }
}

// --- a step --------------------------------------------------------------------------------------------------------

void UnitGradients::begin_step(const StepSummary& own, double scale) {
  own_ = own;
  scale_ = scale;
  may_wait_ = options_.may_wait;
  next_ = launched_ = 0;
  start_ = Clock::now();
  for (Slot& slot : slots_) {
    slot.ready = slot.used = false;
    slot.pending = Tensor();
  }
  for (std::size_t u = 0; u < units_.size(); ++u) {
    units_[u].missing = units_[u].slots.size();
    units_[u].launched = false;
    if (options_.rotating && u != 0) drop_buffer(u);
  }
  holder_ = 0;
}

// Any other unit would lose the buffer to the next unit to reduce, while backward still writes there.
void UnitGradients::enter(std::size_t unit) {
  launch_complete();
  const bool is_next = unit + next_ + 1 == units_.size();
  if (is_next && !units_[unit].has_buffer && !units_[unit].slots.empty() && can_reuse_buffer()) take_buffer(unit);
}

// `unit` is the next one to reduce, so the reduction of the unit that has the buffer was launched. When that reduction
// ends, its sum is in a shard, and the buffer is free. Gradients of `unit` that are complete move to the buffer.
void UnitGradients::take_buffer(std::size_t unit) {
  if (holder_ != 0) {
    wait_for(holder_);
    drop_buffer(holder_);
  }
  holder_ = unit;
  std::int64_t at = 0;
  for (const std::size_t f : units_[unit].flats) {
    FlatGradients& flat = flats_[f];
    flat.whole = typed_view(shared_, at, flat.layout.elements, flat.layout.gradient);
    at += bytes_of(flat.whole);
  }
  units_[unit].has_buffer = true;
  set_views(unit);
  for (const std::size_t p : units_[unit].slots) fill_for_next_owner(slots_[p].view);
  for (const std::size_t p : units_[unit].slots) {
    if (slots_[p].ready) place(slots_[p]);
  }
}

void UnitGradients::drop_buffer(std::size_t unit) {
  for (const std::size_t p : units_[unit].slots) {
    slots_[p].view = Tensor();
    autograd::set_gradient_view(slots_[p].leaf, Tensor());
  }
  for (const std::size_t f : units_[unit].flats) flats_[f].whole = Tensor();
  units_[unit].has_buffer = false;
}

void UnitGradients::mark_ready(std::size_t p, const Tensor& gradient) {
  Slot& slot = slots_[p];
  slot.ready = true;
  slot.used = gradient.defined();
  slot.pending = gradient;
  UnitState& unit = units_[slot.unit];
  if (unit.has_buffer) place(slot);
  if (--unit.missing == 0) unit.stats.ready = seconds();
  launch_complete();
}

void UnitGradients::launch_complete() {
  for (; next_ < units_.size(); ++next_) {
    const std::size_t unit = units_.size() - 1 - next_;
    if (!can_launch(unit)) return;
    launch(unit);
  }
}

bool UnitGradients::can_launch(std::size_t unit) const {
  const UnitState& state = units_[unit];
  if (state.missing > 0 || (!state.has_buffer && !can_reuse_buffer())) return false;
  return may_wait_ || !options_.in_stages || launched_ + state.flats.size() <= kInFlight;
}

void UnitGradients::launch_rest() {
  may_wait_ = true;
  launch_complete();
}

// Whether the shared buffer can be taken without waiting for other ranks, if this rank may not wait.
bool UnitGradients::can_reuse_buffer() const {
  if (may_wait_ || holder_ == 0) return true;
  return std::ranges::all_of(units_[holder_].flats,
                             [&](std::size_t f) { return !flats_[f].work || flats_[f].work->is_completed(); });
}

// Moves the gradient to the unit's buffer, unless backward has written it there.
void UnitGradients::place(Slot& slot) {
  const Tensor gradient = std::exchange(slot.pending, Tensor());
  if (!gradient.defined()) {
    raw::fill(slot.view, -0.0);  // adding -0.0 changes no value, not even the sign of a zero
  } else if (gradient.raw_data() != slot.view.raw_data()) {
    raw::copy(gradient, slot.view);
    ++copies_;
  }
  slot.leaf.set_grad(Tensor());
}

void UnitGradients::launch(std::size_t unit) {
  UnitState& state = units_[unit];
  if (!state.has_buffer && !state.slots.empty()) take_buffer(unit);
  state.launched = true;
  state.stats.launched = seconds();
  launched_ += state.flats.size();
  for (const std::size_t f : state.flats)
    flats_[f].work = group_->reduce_scatter_scaled(flats_[f].shard, flats_[f].whole, scale_,
                                                   {.phase = Phase::kGradients, .name = state.name, .id = unit});
  if (!state.flats.empty()) trace_memory(slots_.front().leaf.device());
}

void UnitGradients::wait_for(std::size_t unit) {
  for (const std::size_t f : units_[unit].flats) {
    if (const auto work = std::exchange(flats_[f].work, nullptr)) work->wait();
  }
  if (units_[unit].launched) units_[unit].stats.done = seconds();
}

void UnitGradients::wait_for_units() {
  for (std::size_t u = units_.size(); u-- > 0;) wait_for(u);
}

StepSummary UnitGradients::wait() {
  own_.write(summary_);
  for (std::size_t p = 0; p < size(); ++p)
    set_element(summary_, StepSummary::kElements + static_cast<std::int64_t>(p), slots_[p].used ? 1 : 0);
  try {
    group_->all_reduce_scaled(summary_, scale_, {.phase = Phase::kGradients})->wait();
    wait_for_units();
  } catch (Error& error) {
    error.add_context(fmt::format("ShardedDataParallel: gradients of step {}", steps_ + 1));
    throw;
  }
  return StepSummary::read(summary_, scale_);
}

bool UnitGradients::any_rank_used(std::size_t p) const {
  return get_element(summary_, StepSummary::kElements + static_cast<std::int64_t>(p)) != 0;
}

void UnitGradients::fill(const StepScale& scale) {
  std::vector<Tensor> sums;
  for (const FlatGradients& flat : flats_) {
    Tensor sum = flat.shard;
    scale_gradient(sum, scale.first / scale_);
    scale_gradient(sum, scale.second);
    if (offloaded_) {
      const int rank = group_->global_rank(group_->rank());
      group_->traffic().add(rank, -1 - rank, Phase::kOffload, bytes_of(sum));
      sum = raw::to(sum, Device());
    }
    sums.push_back(sum);
  }
  for (std::size_t p = 0; p < pieces_.size(); ++p) {
    const auto& [parameter, flat, at] = pieces_[p];
    const Tensor& piece = parameter.master();
    set_rounded(piece, any_rank_used(p) ? elements_of(sums[flat], at, piece.numel()) : Tensor());
  }
  ++steps_;
}

void UnitGradients::fill_stats(TrainingStats& stats) const {
  stats.steps = steps_;
  stats.copies = copies_;
  for (std::size_t u = units_.size(); u-- > 0;) {
    if (units_[u].slots.empty()) continue;
    stats.buckets.push_back(units_[u].stats);
    stats.reduced_bytes += units_[u].stats.bytes * steps_;
  }
  for (const Slot& slot : slots_) stats.copies += autograd::gradient_copies(slot.leaf);
  stats.take_overlap();
}

std::vector<std::string> UnitGradients::unused() const {
  std::vector<std::string> names;
  for (const Slot& slot : slots_) {
    if (!slot.used) names.push_back(slot.name);
  }
  return names;
}

}  // namespace lockstep::parallel
