#include "lockstep/optim/optimizer.h"

#include <algorithm>
#include <string>
#include <string_view>
#include <unordered_set>
#include <utility>

#include "lockstep/optim/state_internal.h"
#include "lockstep/tensor/capture_internal.h"
#include "lockstep/tensor/check_internal.h"
#include "lockstep/tensor/ops_internal.h"

namespace lockstep::optim {
namespace {

std::string option_key(std::size_t group, const char* name) { return fmt::format("param_groups.{}.{}", group, name); }
std::string state_key(std::size_t slot, const char* name) { return fmt::format("state.{}.{}", slot, name); }

// The indices of a group's parameters: first, first + 1, ...
std::vector<std::int64_t> indices(std::size_t first, std::size_t count) {
  std::vector<std::int64_t> result(count);
  for (std::size_t i = 0; i < count; ++i) result[i] = static_cast<std::int64_t>(first + i);
  return result;
}

// A copy of a saved buffer with the parameter's dtype and device.
Tensor read_buffer(const StateReader& reader, const std::string& key, const Tensor& parameter) {
  const Tensor& saved = reader.at(key);
  LOCKSTEP_CHECK(saved.shape() == parameter.shape() && saved.is_floating_point(),
                 "load_state_dict: {} is {}, its parameter is {}", key, describe(saved), describe(parameter));
  return raw::to(raw::clone(raw::to(saved, parameter.dtype())), parameter.device());
}

}  // namespace

void detail::require_option(const char* optimizer, const char* option, double value, double below) {
  LOCKSTEP_CHECK(is_option(value, below), "{}: {} is {}, expected {}", optimizer, option, value,
                 below == 1 ? "a number in [0, 1)" : "a finite number of at least 0");
}

void Optimizer::add_group(const std::vector<nn::Parameter>& parameters, std::vector<double> options) {
  LOCKSTEP_CHECK(options.size() == layout_.options.size(), "{}: a group has {} options, expected {}", type(),
                 options.size(), layout_.options.size());
  check_options(options);
  std::unordered_set<const nn::TensorSlot*> seen;
  for (const Slot& slot : slots_) seen.insert(slot.parameter.id());
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    LOCKSTEP_CHECK(seen.insert(parameters[i].id()).second,
                   "{}: parameter {} of group {}, {}, was given before; pass each parameter once", type(), i,
                   group_count(), describe(parameters[i].master()));
    slots_.push_back({.parameter = parameters[i], .group = group_count()});
  }
  groups_.push_back({.options = std::move(options), .size = parameters.size()});
}

void Optimizer::require_parameters() const { LOCKSTEP_CHECK(!slots_.empty(), "{}: no parameters were given", type()); }

void Optimizer::fit(Tensor& buffer, const Tensor& parameter) {
  const TensorImpl& p = parameter.impl();
  if (!buffer.defined()) {
    LOCKSTEP_CHECK(!capture::is_active(parameter.device()),
                   "optimizer: the state of {} would be created during CUDA graph capture, and again in every replay; "
                   "call step() once before the capture",
                   describe(parameter));
    buffer = raw::zeros(p.shape, parameter.options());
  } else if (buffer.impl().dtype != p.dtype || buffer.device() != p.storage->device()) {
    buffer = raw::to(raw::to(buffer, p.dtype), p.storage->device());
  }
}

void Optimizer::zero_grad() {
  for (const Slot& slot : slots_) slot.parameter.master().set_grad({});
}

void Optimizer::check_group(std::size_t group) const {
  LOCKSTEP_CHECK(group < group_count(), "optimizer: group {} is outside [0, {})", group, group_count());
}

double Optimizer::lr(std::size_t group) const {
  check_group(group);
  return groups_[group].options[0];
}

double Optimizer::initial_lr(std::size_t group) {
  double& initial = groups_[group].initial_lr;
  if (initial < 0) initial = lr(group);
  return initial;
}

void Optimizer::set_lr(std::size_t group, double lr) {
  check_group(group);
  detail::require_option("set_lr", "lr", lr);
  groups_[group].options[0] = lr;
}

void Optimizer::set_lr(double lr) {
  for (std::size_t group = 0; group < group_count(); ++group) set_lr(group, lr);
}

// --- state ---

std::size_t Optimizer::list_size(std::size_t option) const {
  std::size_t size = 1;
  while (option + size < layout_.options.size() &&
         std::string_view(layout_.options[option + size]) == layout_.options[option])
    ++size;
  return size;
}

StateDict Optimizer::state_dict() const {
  StateDict dict;
  for (std::size_t i = 0; i < slots_.size(); ++i) {
    const Slot& slot = slots_[i];
    if (!slot.buffers[0].defined()) continue;
    if (layout_.saves_steps) dict.insert(state_key(i, "step"), to_tensor(slot.steps));
    for (std::size_t b = 0; b < layout_.buffers.size(); ++b) {
      dict.insert(state_key(i, layout_.buffers[b]), raw::clone(slot.buffers[b]));
    }
  }
  std::size_t first = 0;
  for (std::size_t group = 0; group < group_count(); ++group) {
    const auto& [values, size, initial_lr] = groups_[group];
    for (std::size_t i = 0, count = 1; i < values.size(); i += count) {
      count = list_size(i);
      const auto first_value = values.begin() + static_cast<std::ptrdiff_t>(i);
      dict.insert(option_key(group, layout_.options[i]),
                  count > 1
                      ? to_tensor(std::vector<double>(first_value, first_value + static_cast<std::ptrdiff_t>(count)))
                  : is_flag(i) ? to_tensor(values[i] != 0)
                               : to_tensor(values[i]));
    }
    dict.insert(option_key(group, "params"), to_tensor(indices(first, size)));
    first += size;
  }
  return dict;
}

std::vector<Optimizer::Group> Optimizer::read_groups(const StateReader& reader) const {
  std::vector<Group> groups = groups_;
  std::size_t first = 0;
  for (std::size_t group = 0; group < groups.size(); ++group) {
    auto& [values, size, initial_lr] = groups[group];
    for (std::size_t i = 0, count = 1; i < values.size(); i += count) {
      count = list_size(i);
      const std::string key = option_key(group, layout_.options[i]);
      if (count > 1) {
        const std::vector<double> list = reader.list<double>(key);
        LOCKSTEP_CHECK(list.size() == count, "load_state_dict: \"{}\" has {} numbers, expected {}", key, list.size(),
                       count);
        std::ranges::copy(list, values.begin() + static_cast<std::ptrdiff_t>(i));
        continue;
      }
      values[i] = reader.number(key);
      LOCKSTEP_CHECK(!is_flag(i) || values[i] == 0 || values[i] == 1, "load_state_dict: \"{}\" is {}, expected a bool",
                     key, values[i]);
    }
    check_options(values);
    const std::string key = option_key(group, "params");
    const auto saved = reader.list<std::int64_t>(key);
    LOCKSTEP_CHECK(saved == indices(first, size),
                   "load_state_dict: {} lists {} parameters, but the optimizer's group has {}, starting at index {}",
                   key, saved.size(), size, first);
    first += size;
  }
  return groups;
}

std::vector<Optimizer::Slot> Optimizer::read_slots(const StateReader& reader) const {
  std::vector<Slot> slots;
  for (std::size_t i = 0; i < slots_.size(); ++i) {
    Slot& slot = slots.emplace_back(Slot{.parameter = slots_[i].parameter, .group = slots_[i].group});
    bool stepped = layout_.saves_steps && reader.contains(state_key(i, "step"));
    for (const char* name : layout_.buffers) stepped = stepped || reader.contains(state_key(i, name));
    if (!stepped) continue;
    if (layout_.saves_steps) slot.steps = reader.count(state_key(i, "step"));
    for (std::size_t b = 0; b < layout_.buffers.size(); ++b) {
      slot.buffers[b] = read_buffer(reader, state_key(i, layout_.buffers[b]), slot.parameter.master());
    }
  }
  return slots;
}

Callback<void()> Optimizer::prepare_load(const StateDict& state) {
  const StateReader reader(state);
  std::vector<Group> groups = read_groups(reader);
  std::vector<Slot> slots = read_slots(reader);
  reader.require_all_read();
  return [this, groups = std::move(groups), slots = std::move(slots)]() mutable {
    groups_ = std::move(groups);
    std::ranges::move(slots, slots_.begin());  // in place: a captured CUDA graph refers to slots_
  };
}

}  // namespace lockstep::optim
