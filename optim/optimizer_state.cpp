// Optimizer: state_dict and load_state_dict.
#include <fmt/format.h>

#include <string>
#include <utility>

#include "lockstep/optim/optimizer.h"
#include "lockstep/optim/state_internal.h"
#include "lockstep/tensor/check_internal.h"
#include "lockstep/tensor/ops_internal.h"

namespace lockstep::optim {

// A checked copy of a state dict, converted to the layout of Slot and Option.
struct Optimizer::Loaded {
  struct State {
    std::int64_t steps = 0;
    Tensor buffers[2];
  };
  std::vector<std::vector<double>> options;  // one entry for each group
  std::vector<State> states;                 // one entry for each slot
};

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

StateDict Optimizer::state_dict() const {
  StateDict dict;
  for (std::size_t i = 0; i < slots_.size(); ++i) {
    const Slot& slot = slots_[i];
    const auto names = buffer_names();
    if (!slot.buffers[0].defined()) continue;
    if (saves_steps()) dict.insert(state_key(i, "step"), to_tensor(slot.steps));
    for (std::size_t b = 0; b < names.size(); ++b) {
      dict.insert(state_key(i, names[b]), raw::clone(slot.buffers[b]));
    }
  }
  std::size_t first = 0;
  for (std::size_t group = 0; group < group_count(); ++group) {
    for (const Option& option : const_cast<Optimizer*>(this)->options(group)) {
      dict.insert(option_key(group, option.name), option.number ? to_tensor(*option.number) : to_tensor(*option.flag));
    }
    dict.insert(option_key(group, "params"), to_tensor(indices(first, group_sizes_[group])));
    first += group_sizes_[group];
  }
  return dict;
}

Optimizer::Loaded Optimizer::read(const StateDict& dict) {
  StateReader reader(dict);
  Loaded loaded;
  std::size_t first = 0;
  for (std::size_t group = 0; group < group_count(); ++group) {
    std::vector<double>& values = loaded.options.emplace_back();
    for (const Option& option : options(group)) {
      const std::string key = option_key(group, option.name);
      values.push_back(reader.number(key));
      LOCKSTEP_CHECK(option.number || values.back() == 0 || values.back() == 1,
                     "load_state_dict: \"{}\" is {}, expected a bool", key, values.back());
    }
    check_options(values);
    const std::string key = option_key(group, "params");
    const auto saved = reader.integers(key);
    LOCKSTEP_CHECK(saved == indices(first, group_sizes_[group]),
                   "load_state_dict: {} lists {} parameters, but the optimizer's group has {}, starting at index {}",
                   key, saved.size(), group_sizes_[group], first);
    first += group_sizes_[group];
  }
  const auto names = buffer_names();
  for (std::size_t i = 0; i < slots_.size(); ++i) {
    Loaded::State& state = loaded.states.emplace_back();
    bool stepped = saves_steps() && reader.contains(state_key(i, "step"));
    for (const char* name : names) stepped = stepped || reader.contains(state_key(i, name));
    if (!stepped) continue;
    if (saves_steps()) state.steps = reader.count(state_key(i, "step"));
    for (std::size_t b = 0; b < names.size(); ++b) {
      state.buffers[b] = read_buffer(reader, state_key(i, names[b]), slots_[i].parameter.master());
    }
  }
  reader.require_all_read();
  return loaded;
}

Callback<void()> Optimizer::prepare_load(const StateDict& state) {
  return [this, loaded = read(state)]() mutable {
    for (std::size_t group = 0; group < loaded.options.size(); ++group) {
      const std::vector<double>& values = loaded.options[group];
      const std::vector<Option> targets = options(group);
      for (std::size_t i = 0; i < targets.size(); ++i) {
        if (targets[i].number)
          *targets[i].number = values[i];
        else
          *targets[i].flag = values[i] != 0;
      }
    }
    for (std::size_t i = 0; i < loaded.states.size(); ++i) {
      slots_[i].steps = loaded.states[i].steps;
      std::swap(slots_[i].buffers, loaded.states[i].buffers);
    }
  };
}

}  // namespace lockstep::optim
