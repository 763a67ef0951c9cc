// Saves and loads an optimizer: the options of its groups, and the state of its parameters by index or by name.
#include <algorithm>
#include <iterator>
#include <set>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>

#include "lockstep/base/check_internal.h"
#include "lockstep/nn/module_internal.h"
#include "lockstep/optim/optimizer.h"
#include "lockstep/optim/state_internal.h"
#include "lockstep/tensor/ops/ops_internal.h"

namespace lockstep::optim {
namespace {

constexpr const char* kInitialLr = "initial_lr";
constexpr const char* kGroupOf = "param_group.";  // only states by name have keys with this prefix

std::string option_key(std::size_t group, const char* name) { return fmt::format("param_groups.{}.{}", group, name); }
std::string state_key(const std::string& label, const char* name) { return fmt::format("state.{}.{}", label, name); }

// The indices of a group's parameters: first, first + 1, ...
std::vector<std::int64_t> indices(std::size_t first, std::size_t count) {
  std::vector<std::int64_t> result(count);
  for (std::size_t i = 0; i < count; ++i) result[i] = static_cast<std::int64_t>(first + i);
  return result;
}

// Copies a saved buffer to the parameter's dtype and device. Throws InvalidArgument unless its shape is `shape`.
Tensor read_buffer(const StateReader& reader, const std::string& key, const Tensor& parameter, const Shape& shape) {
  const Tensor& saved = reader.at(key);
  LOCKSTEP_CHECK(saved.shape() == shape && saved.is_floating_point(), "load_state_dict: {} is {}, its parameter is {}",
                 key, describe(saved), describe(parameter));
  return raw::to(raw::clone(raw::to(saved, parameter.dtype())), parameter.device());
}

// Reads the group and the index of a parameter that was saved by name. Throws InvalidArgument unless they are below
// `groups` and `parameters`.
std::pair<std::size_t, std::size_t> read_position(const StateReader& reader, const std::string& name,
                                                  std::size_t groups, std::size_t parameters) {
  const std::string key = kGroupOf + name;
  const auto position = reader.list<std::int64_t>(key);
  const auto is_below = [](std::int64_t value, std::size_t limit) {
    return value >= 0 && static_cast<std::size_t>(value) < limit;
  };
  LOCKSTEP_CHECK(position.size() == 2 && is_below(position[0], groups) && is_below(position[1], parameters),
                 "load_state_dict: {} is {}, expected a group below {} and an index below {}", in_quotes(key),
                 position.size() == 2 ? fmt::format("({}, {})", position[0], position[1]) : describe(reader.at(key)),
                 groups, parameters);
  return {static_cast<std::size_t>(position[0]), static_cast<std::size_t>(position[1])};
}

NamedParameters names_in(const nn::Module* model) { return model ? model->named_parameters() : NamedParameters(); }

// Throws InvalidArgument unless `own` and `saved` contain the same names. Empty names are ignored.
void require_names(const std::vector<std::string>& own, const std::vector<std::string>& saved) {
  const auto without = [](const std::vector<std::string>& names, const std::vector<std::string>& others) {
    const std::set<std::string> known(others.begin(), others.end());
    std::vector<std::string> rest;
    std::ranges::copy_if(names, std::back_inserter(rest),
                         [&](const std::string& name) { return !name.empty() && !known.contains(name); });
    return rest;
  };
  const std::vector<std::string> missing = without(own, saved), unexpected = without(saved, own);
  LOCKSTEP_CHECK(
      missing.empty() && unexpected.empty(),
      "load_state_dict: missing in the state: {}; missing in the optimizer: {}\nConstruct the optimizer with "
      "the parameters that were saved",
      missing.empty() ? "none" : nn::enumerate(missing), unexpected.empty() ? "none" : nn::enumerate(unexpected));
}

}  // namespace

// The groups and parameters that a state dict names.
struct Optimizer::Saved {
  std::vector<std::string> labels;                // by parameter: its index or name, as the keys have it
  std::vector<Group> groups;                      // of the state dict
  std::vector<std::vector<std::size_t>> sources;  // see SavedGroups
  std::vector<std::size_t> sizes;                 // of the optimizer's groups, on all ranks
};

std::size_t Optimizer::list_size(std::size_t option) const {
  std::size_t size = 1;
  while (option + size < layout_.options.size() &&
         std::string_view(layout_.options[option + size]) == layout_.options[option])
    ++size;
  return size;
}

std::vector<std::string> Optimizer::labels_from(const NamedParameters& names) const {
  std::unordered_map<const nn::TensorSlot*, std::string> name_of;
  for (const auto& [name, parameter] : names) name_of.emplace(parameter.id(), name);
  std::vector<std::string> labels(slots_.size());
  for (std::size_t i = 0; i < slots_.size(); ++i) {
    const auto found = name_of.find(slots_[i].parameter.id());
    if (found != name_of.end()) labels[i] = found->second;
  }
  return labels;
}

StateDict Optimizer::state_dict(const nn::Module* model) const {
  require_whole("state_dict");
  return shared_state(names_in(model)).clone();
}

void Optimizer::require_whole(const char* operation) const {
  for (const Slot& slot : slots_) {
    const nn::Sharding sharding = slot.parameter.sharding();
    LOCKSTEP_CHECK(sharding != nn::Sharding::kPiece && sharding != nn::Sharding::kStage,
                   "{}: the optimizer has this rank's {}; use parallel::save_checkpoint and load_checkpoint, with "
                   "{{.model = &run, .optimizer = &optimizer}}",
                   operation, sharding == nn::Sharding::kPiece ? "pieces of a sharded model" : "stages of a pipeline");
  }
}

StateDict Optimizer::shared_state(const NamedParameters& names) const {
  std::vector<std::string> labels = labels_from(names);
  const bool by_name = std::ranges::find(labels, "") == labels.end();
  StateDict dict;
  for (std::size_t i = 0; i < slots_.size(); ++i) {
    const Slot& slot = slots_[i];
    if (by_name)
      dict.insert(kGroupOf + labels[i], to_tensor(std::vector<std::int64_t>{static_cast<std::int64_t>(slot.group),
                                                                            static_cast<std::int64_t>(i)}));
    else
      labels[i] = std::to_string(i);
    if (std::ranges::none_of(slot.buffers, &Tensor::defined)) continue;
    if (layout_.saves_steps) dict.insert(state_key(labels[i], "step"), to_tensor(slot.steps));
    for (std::size_t b = 0; b < layout_.buffers.size(); ++b) {
      if (slot.buffers[b].defined()) dict.insert(state_key(labels[i], layout_.buffers[b]), slot.buffers[b]);
    }
  }
  if (!labels.empty()) save_common(dict, labels);
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
    if (initial_lr >= 0) dict.insert(option_key(group, kInitialLr), to_tensor(initial_lr));
    if (!by_name) dict.insert(option_key(group, "params"), to_tensor(indices(first, size)));
    first += size;
  }
  return dict;
}

Optimizer::Group Optimizer::read_group(const StateReader& reader, std::size_t group) const {
  Group saved = {.options = std::vector<double>(layout_.options.size()), .size = 0};
  std::vector<double>& values = saved.options;
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
    if (is_flag(i) && !reader.contains(key)) continue;  // saved by a version without the flag
    values[i] = reader.number(key);
    LOCKSTEP_CHECK(!is_flag(i) || values[i] == 0 || values[i] == 1, "load_state_dict: \"{}\" is {}, expected a bool",
                   key, values[i]);
  }
  check_options(values);
  const std::string key = option_key(group, kInitialLr);
  if (reader.contains(key)) {
    saved.initial_lr = reader.number(key);
    detail::require_option("load_state_dict", kInitialLr, saved.initial_lr);
  }
  return saved;
}

Optimizer::Saved Optimizer::read_by_index(const StateReader& reader) const {
  Saved saved;
  std::size_t first = 0;
  for (std::size_t group = 0; group < groups_.size(); ++group) {
    saved.groups.push_back(read_group(reader, group));
    saved.sources.push_back({group});
    const std::size_t size = saved.groups[group].size = groups_[group].size;
    saved.sizes.push_back(size);
    const std::string key = option_key(group, "params");
    const auto listed = reader.list<std::int64_t>(key);
    LOCKSTEP_CHECK(listed == indices(first, size),
                   "load_state_dict: {} lists {} parameters, but the optimizer's group has {}, starting at index {}",
                   key, listed.size(), size, first);
    first += size;
  }
  for (std::size_t i = 0; i < slots_.size(); ++i) saved.labels.push_back(std::to_string(i));
  return saved;
}

Optimizer::Saved Optimizer::read_by_name(const StateReader& reader, const NamedParameters& named,
                                         const GroupsOfParameters& elsewhere) const {
  Saved saved = {.labels = labels_from(named), .groups = {}, .sources = {}, .sizes = {}};
  saved.sources.resize(group_count());
  saved.sizes.resize(group_count());
  while (reader.contains(option_key(saved.groups.size(), layout_.options[0])))
    saved.groups.push_back(read_group(reader, saved.groups.size()));
  const std::vector<std::string> names = reader.names_after(kGroupOf);
  for (std::size_t i = 0; !named.empty() && i < slots_.size(); ++i)
    LOCKSTEP_CHECK(!saved.labels[i].empty(),
                   "load_state_dict: parameter {} of {}, {}, is not in the model, and the state is by name; pass the "
                   "model that has all parameters of the optimizer",
                   i, type(), describe(slots_[i].parameter.master()));
  if (named.empty()) {  // without a model, the saved indices say which parameter has which name
    LOCKSTEP_CHECK(names.size() == slots_.size(), "load_state_dict: the state has {} parameters, the optimizer {}",
                   names.size(), slots_.size());
    for (const std::string& name : names)
      saved.labels[read_position(reader, name, saved.groups.size(), slots_.size()).second] = name;
  }
  std::vector<std::string> all_labels = saved.labels;
  for (const auto& [name, group] : elsewhere) all_labels.push_back(name);
  require_names(all_labels, names);
  const auto count = [&](const std::string& name, std::size_t own_group) {
    const std::size_t group = read_position(reader, name, saved.groups.size(), all_labels.size()).first;
    ++saved.groups[group].size;
    ++saved.sizes[own_group];
    std::vector<std::size_t>& sources = saved.sources[own_group];
    if (std::ranges::find(sources, group) == sources.end()) sources.push_back(group);
  };
  for (std::size_t i = 0; i < slots_.size(); ++i) count(saved.labels[i], slots_[i].group);
  for (const auto& [name, group] : elsewhere) count(name, group);
  return saved;
}

Optimizer::Saved Optimizer::read(const StateReader& reader, const NamedParameters& names,
                                 const GroupsOfParameters& elsewhere) const {
  return reader.names_after(kGroupOf).empty() ? read_by_index(reader) : read_by_name(reader, names, elsewhere);
}

// A group whose parameters are exactly those of one saved group takes the saved options. Any other group keeps the
// constructor's options, except the learning rate, which is the only option that changes during training.
std::vector<Optimizer::Group> Optimizer::merged_groups(const Saved& saved) const {
  std::vector<Group> groups = groups_;
  for (std::size_t g = 0; g < groups.size(); ++g) {
    const std::vector<std::size_t>& sources = saved.sources[g];
    Group& group = groups[g];
    if (sources.size() == 1 && saved.groups[sources[0]].size == saved.sizes[g])
      group.options = saved.groups[sources[0]].options;
    group.options[0] =
        common_value(sources, group.options[0], [&](std::size_t source) { return saved.groups[source].options[0]; });
    const double initial_lr =
        common_value(sources, group.initial_lr, [&](std::size_t source) { return saved.groups[source].initial_lr; });
    if (initial_lr >= 0) group.initial_lr = initial_lr;
  }
  return groups;
}

std::vector<Optimizer::Slot> Optimizer::read_slots(const StateReader& reader,
                                                   const std::vector<std::string>& labels) const {
  std::vector<Slot> slots;
  for (std::size_t i = 0; i < slots_.size(); ++i) {
    Slot& slot = slots.emplace_back(Slot{.parameter = slots_[i].parameter, .group = slots_[i].group});
    bool stepped = layout_.saves_steps && reader.contains(state_key(labels[i], "step"));
    for (const char* name : layout_.buffers) stepped = stepped || reader.contains(state_key(labels[i], name));
    if (!stepped) continue;
    if (layout_.saves_steps) slot.steps = reader.count(state_key(labels[i], "step"));
    for (std::size_t b = 0; b < layout_.buffers.size(); ++b) {
      const std::string key = state_key(labels[i], layout_.buffers[b]);
      const bool is_optional = b + layout_.optional_buffers >= layout_.buffers.size();
      if (is_optional && !reader.contains(key)) continue;
      const Tensor& parameter = slot.parameter.master();
      slot.buffers[b] = read_buffer(reader, key, parameter, buffer_shape(parameter, b));
    }
  }
  return slots;
}

Callback<void()> Optimizer::prepare_load(const StateDict& state, const nn::Module* model, SavedGroups* from) {
  require_whole("load_state_dict");
  return prepare_load(state, names_in(model), from);
}

Callback<void()> Optimizer::prepare_load(const StateDict& state, const NamedParameters& names, SavedGroups* from,
                                         const GroupsOfParameters& elsewhere) {
  const StateReader reader(state);
  Saved saved = read(reader, names, elsewhere);
  std::vector<Group> groups = merged_groups(saved);
  std::vector<Slot> slots = read_slots(reader, saved.labels);
  Callback<void()> load_common = prepare_common(reader, saved.labels);
  reader.require_all_read();
  if (from) *from = {.count = saved.groups.size(), .sources = std::move(saved.sources)};
  return [this, groups = std::move(groups), slots = std::move(slots), load_common = std::move(load_common)]() mutable {
    if (load_common) load_common();
    groups_ = std::move(groups);
    std::ranges::move(slots, slots_.begin());  // in place: a captured CUDA graph refers to slots_
  };
}

}  // namespace lockstep::optim
