#include "lockstep/parallel/sharded/unit_gathers_internal.h"

#include <algorithm>
#include <numeric>

#include "lockstep/tensor/check_internal.h"
#include "lockstep/tensor/ops_internal.h"

namespace lockstep::parallel {
namespace {

constexpr std::size_t kBuffers = 2;

}  // namespace

UnitGathers::UnitGathers(std::vector<UnitParameters>& units, std::shared_ptr<ProcessGroup> group)
    : units_(units), group_(std::move(group)), states_(units.size()),
      direct_(std::ranges::all_of(units, &UnitParameters::reads_directly)) {
  if (units_[0].is_resident()) return;
  if (units_[0].whole_bytes() > 0) root_memory_ = allocate(units_[0].whole_bytes());
  for (std::size_t u = 1; u < count(); ++u) largest_ = std::max(largest_, units_[u].whole_bytes());
  buffers_.resize(std::min(kBuffers, count() - 1));
  for (Buffer& buffer : buffers_) buffer.memory = allocate(largest_);
}

// All units are on one device.
Tensor UnitGathers::allocate(std::int64_t bytes) const {
  const UnitParameters& unit = units_[0].flats().empty() ? units_[1] : units_[0];
  return raw::empty({bytes}, {.dtype = kUInt8, .device = unit.flats().front().layout.device});
}

// Waits for gathers of a step that failed, which other ranks may have launched as well.
void UnitGathers::begin_step() {
  for (UnitParameters& unit : units_) {
    unit.release();
    unit.mark_changed();
  }
  std::ranges::fill(states_, State());
  for (Buffer& buffer : buffers_) buffer.holder = -1;
  if (direct_) group_->barrier();
}

void UnitGathers::begin_forward() {
  phase_ = Phase::kForward;
  next_ = 0;
  order_.resize(count());
  std::iota(order_.begin(), order_.end(), std::size_t{0});
  for (State& state : states_) {
    state.active = false;
    state.expected = 0;
  }
  request(0);
}

// The last unit stays for backward.
void UnitGathers::end_forward() {
  launch_rest();
  for (std::size_t u = 1; u < count(); ++u) {
    states_[u].active = false;
    if (!is_kept(u)) release(u);
  }
}

void UnitGathers::begin_backward() {
  phase_ = Phase::kBackward;
  next_ = 0;
  order_.clear();
  for (std::size_t u = count(); u-- > 0;) {
    if (!is_kept(u) && !units_[u].is_resident()) order_.push_back(u);
  }
}

void UnitGathers::end_backward() {
  launch_rest();
  for (std::size_t u = 0; u < count(); ++u) {
    states_[u].active = false;
    release(u);
  }
  phase_ = Phase::kNone;
}

void UnitGathers::end_step() {
  phase_ = Phase::kNone;
  for (UnitParameters& unit : units_) unit.hide();
  buffers_.resize(std::min(kBuffers, buffers_.size()));
}

void UnitGathers::enter_forward(std::size_t unit) {
  if (phase_ != Phase::kNone) request(unit);
}

void UnitGathers::leave_forward(std::size_t unit) {
  if (phase_ == Phase::kForward) states_[unit].active = unit == 0;
}

void UnitGathers::expect_backward(std::size_t unit) { ++states_[unit].expected; }

// Backward runs the newest operations first: units whose outputs have no gradient to come are done.
void UnitGathers::enter_backward(std::size_t unit) {
  if (phase_ != Phase::kBackward) return;
  --states_[unit].expected;
  for (std::size_t u = 1; u < count(); ++u) {
    if (u != unit && states_[u].expected <= 0) states_[u].active = false;
  }
  request(unit);
}

// The operation may hold addresses of other units, even of those that are not active.
void UnitGathers::need(std::size_t unit) { request(unit, /*may_evict=*/false); }

void UnitGathers::request(std::size_t unit, bool may_evict) {
  if (!units_[unit].is_present()) {
    const auto rest = order_.begin() + static_cast<std::ptrdiff_t>(next_);
    const auto last = std::find(rest, order_.end(), unit);
    while (in_order() && last != order_.end() && next_ <= static_cast<std::size_t>(last - order_.begin()))
      launch_next(may_evict);
    if (!states_[unit].launched) launch(unit, may_evict);
    units_[unit].present();
  }
  states_[unit].active = true;
  // The next one in order can start: other ranks may be ahead.
  const auto is_free_now = [&](const Buffer& buffer) { return is_free(buffer, may_evict); };
  if (in_order() && next_ < order_.size() && std::ranges::any_of(buffers_, is_free_now)) launch_next(may_evict);
}

void UnitGathers::launch_next(bool may_evict) {
  const std::size_t unit = order_[next_++];
  if (!states_[unit].launched) launch(unit, may_evict);
}

void UnitGathers::launch_rest() {
  while (in_order() && next_ < order_.size()) launch_next();
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
  return !states_[holder].active && (may_evict || !units_[holder].is_present());
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
