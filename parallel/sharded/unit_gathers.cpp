#include "lockstep/parallel/sharded/unit_gathers_internal.h"

#include <algorithm>
#include <numeric>

#include "lockstep/base/check_internal.h"
#include "lockstep/parallel/step/typed_memory_internal.h"
#include "lockstep/tensor/ops/ops_internal.h"

namespace lockstep::parallel {
namespace {

constexpr std::size_t kBuffers = 2;

}  // namespace

UnitGathers::UnitGathers(std::vector<UnitParameters>& units, std::shared_ptr<ProcessGroup> group,
                         std::vector<Chunk> chunks)
    : units_(units), group_(std::move(group)), states_(units.size()),
      direct_(std::ranges::all_of(units, &UnitParameters::reads_directly)), is_in_stages_(!chunks.empty()) {
  if (!is_in_stages_) {
    std::vector<std::size_t>& all = chunks.emplace_back().units;
    all.resize(count());
    std::iota(all.begin(), all.end(), std::size_t{0});
  }
  for (const auto& [of_chunk, split] : chunks)
    orders_.push_back({.forward = of_chunk, .backward = backward_order(of_chunk), .split_backwards = split});
  if (units_[0].is_resident()) return;
  if (units_[0].whole_bytes() > 0) root_memory_ = allocate(units_[0].whole_bytes());
  for (std::size_t u = 1; u < count(); ++u) largest_ = std::max(largest_, units_[u].whole_bytes());
  buffers_.resize(std::min(kBuffers, count() - 1));
  for (Buffer& buffer : buffers_) buffer.memory = allocate(largest_);
}

// The root first, which has memory of its own. The gradient of a unit's output arrives before those of the units in it.
std::vector<std::size_t> UnitGathers::backward_order(const std::vector<std::size_t>& units) const {
  std::vector<std::size_t> order;
  for (const std::size_t u : units) {
    if (!units_[0].is_resident() && !is_kept(u)) order.push_back(u);
  }
  std::ranges::sort(order, [&](std::size_t a, std::size_t b) {
    if (a == 0 || b == 0) return b != 0;
    return units_[a].contains(units_[b]) || (a > b && !units_[b].contains(units_[a]));
  });
  return order;
}

std::int64_t UnitGathers::gathers_of(std::size_t unit, int micro_batches) const {
  std::int64_t gathers = 0;
  for (const Order& order : orders_)
    gathers += micro_batches * std::ranges::count(order.forward, unit) +
               (micro_batches + (direct_ ? 0 : order.split_backwards)) * std::ranges::count(order.backward, unit);
  return gathers;
}

// All units are on one device.
Tensor UnitGathers::allocate(std::int64_t bytes) const {
  const UnitParameters& unit = units_[0].flats().empty() ? units_[1] : units_[0];
  return raw::empty({bytes}, {.dtype = kUInt8, .device = unit.flats().front().layout.device});
}

void UnitGathers::begin_step() {
  for (UnitParameters& unit : units_) unit.mark_changed();
  std::ranges::fill(states_, State());
  passes_.clear();
  for (Buffer& buffer : buffers_) buffer.holder = -1;
  if (direct_) group_->barrier({.name = "before FSDP's all_gather"});  // in traces: the wait before ranks read shards
}

void UnitGathers::begin_forward(const MicroBatchPass& pass) {
  passes_.erase(pass);
  enter_pass(pass);
  for (State& state : states_) state.active = false;
  begin_phase(Phase::kForward, orders_[static_cast<std::size_t>(pass.chunk)].forward);
}

// Units that stay for backward are readable from now on. This rank's reductions must not wait for ranks that wait for its
// part of a gather.
void UnitGathers::end_forward() {
  launch_rest();
  for (std::size_t u = 0; u < count(); ++u) {
    states_[u].active = u == 0 && is_kept(u);
    if (!is_kept(u)) release(u);
  }
  for (std::size_t u = 0; u < count(); ++u) {
    if (states_[u].launched) units_[u].present();
  }
}

void UnitGathers::begin_backward(const MicroBatchPass& pass, BackwardPart part) {
  enter_pass(pass);
  part_ = part;
  const bool gathers_none = part == BackwardPart::kWeight && direct_;
  begin_phase(Phase::kBackward, gathers_none ? none_ : orders_[static_cast<std::size_t>(pass.chunk)].backward);
}

void UnitGathers::end_backward() {
  launch_rest();
  part_ == BackwardPart::kInput ? release_all() : leave_pass();
}

void UnitGathers::skip_backward(const MicroBatchPass& pass) {
  enter_pass(pass);
  leave_pass();
}

void UnitGathers::leave_pass() {
  release_all();
  std::erase_if(passes_, [this](const auto& each) { return &each.second == pass_; });
  pass_ = nullptr;
}

void UnitGathers::release_all() {
  for (std::size_t u = 0; u < count(); ++u) {
    states_[u].active = false;
    release(u);
  }
  phase_ = Phase::kNone;
}

void UnitGathers::end_step() {
  phase_ = Phase::kNone;
  passes_.clear();
  pass_ = nullptr;
  for (UnitParameters& unit : units_) unit.hide();
  buffers_.resize(std::min(kBuffers, buffers_.size()));
}

void UnitGathers::gather_all(const char* purpose) {
  if (direct_) group_->barrier({.name = purpose});  // all ranks' optimizers have finished their steps
  for (UnitParameters& unit : units_) {
    unit.mark_changed();
    unit.gather_apart(*group_);
    unit.note_version();
  }
  if (direct_) group_->barrier();  // all ranks have read the shards
  phase_ = Phase::kAll;
}

void UnitGathers::end_all() {
  phase_ = Phase::kNone;
  for (UnitParameters& unit : units_) unit.hide();
}

// A unit that backward may still need is one that forward has used. The root is first in both orders.
void UnitGathers::begin_phase(Phase phase, const std::vector<std::size_t>& order) {
  phase_ = phase;
  order_ = in_order() ? &order : &none_;
  next_ = 0;
  for (std::size_t u = 0; u < count(); ++u) states_[u].awaited = phase == Phase::kForward || (*pass_)[u].requested;
  if (!order.empty() && order[0] == 0) request(0);
}

void UnitGathers::enter_forward(std::size_t unit) {
  if (is_running()) request(unit);
}

void UnitGathers::leave_forward(std::size_t unit) {
  if (phase_ == Phase::kForward) states_[unit].active = unit == 0;
}

std::shared_ptr<UnitGathers::Expected> UnitGathers::expect_backward(std::size_t unit) {
  auto expected = std::make_shared<Expected>();
  (*pass_)[unit].expected.push_back(expected);
  return expected;
}

// Backward runs the newest operations first: units whose outputs have no gradient to come are done, apart from those
// that contain this one.
void UnitGathers::enter_backward(std::size_t unit) {
  if (phase_ != Phase::kBackward) return;
  for (std::size_t u = 1; u < count(); ++u) {
    std::vector<std::weak_ptr<Expected>>& expected = (*pass_)[u].expected;
    std::erase_if(expected, [](const auto& each) { return each.expired() || each.lock()->has_arrived; });
    if (u != unit && expected.empty() && !units_[u].contains(units_[unit])) states_[u].active = false;
  }
  request(unit);
}

// The operation may hold addresses of other units, even of those that are not active.
void UnitGathers::need(std::size_t unit) { request(unit, /*may_evict=*/false); }

void UnitGathers::request(std::size_t unit, bool may_evict) {
  State& state = states_[unit];
  if (!units_[unit].is_present()) {
    const auto rest = order_->begin() + static_cast<std::ptrdiff_t>(next_);
    const auto found = std::find(rest, order_->end(), unit);
    // Forward that has passed a unit seldom comes back to it; what it needs again is gathered again.
    if (phase_ == Phase::kForward)
      std::for_each(order_->begin(), found == order_->end() ? rest : found,
                    [&](std::size_t u) { states_[u].awaited = false; });
    if (found != order_->end()) {
      const auto last = static_cast<std::size_t>(found - order_->begin());
      while (next_ <= last) launch_next(may_evict);
    }
    if (!state.launched) launch(unit, may_evict);
    units_[unit].present();
  }
  (*pass_)[unit].requested = state.active = true;
  state.awaited = false;
  // The next one in order can start: other ranks may be ahead.
  const auto is_free_now = [&](const Buffer& buffer) { return is_free(buffer, may_evict); };
  if (next_ < order_->size() && std::ranges::any_of(buffers_, is_free_now)) launch_next(may_evict);
}

void UnitGathers::launch_next(bool may_evict) {
  const std::size_t unit = (*order_)[next_++];
  if (!states_[unit].launched) launch(unit, may_evict);
}

void UnitGathers::launch_rest() {
  for (State& state : states_) state.awaited = false;
  while (next_ < order_->size()) launch_next();
}

void UnitGathers::launch(std::size_t unit, bool may_evict) {
  UnitParameters& parameters = units_[unit];
  Tensor memory = root_memory_;
  if (!parameters.is_resident() && unit != 0) {
    Buffer& buffer = take_buffer(may_evict);
    buffer.holder = static_cast<int>(unit);
    memory = buffer.memory;
  }
  states_[unit].launched = true;
  parameters.launch(*group_, memory);
}

bool UnitGathers::is_free(const Buffer& buffer, bool may_evict) const {
  if (buffer.holder < 0) return true;
  const auto holder = static_cast<std::size_t>(buffer.holder);
  const State& state = states_[holder];
  return !state.active && !state.awaited && (may_evict || !units_[holder].is_present());
}

// The one that was used first of those that are free, or a new one.
UnitGathers::Buffer& UnitGathers::take_buffer(bool may_evict) {
  Buffer* found = nullptr;
  for (Buffer& buffer : buffers_) {
    if (is_free(buffer, may_evict) && (!found || buffer.used < found->used)) found = &buffer;
  }
  if (!found) {
    found = &buffers_.emplace_back();
    found->memory = allocate(largest_);
  }
  if (found->holder >= 0) release(static_cast<std::size_t>(found->holder));
  fill_for_next_owner(found->memory);
  found->used = ++gathers_;
  return *found;
}

void UnitGathers::release(std::size_t unit) {
  if (units_[unit].is_resident()) return;
  units_[unit].release();
  states_[unit].launched = false;
  for (Buffer& buffer : buffers_) {
    if (buffer.holder == static_cast<int>(unit)) buffer.holder = -1;
  }
}

}  // namespace lockstep::parallel
