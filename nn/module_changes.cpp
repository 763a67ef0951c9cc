// Module: submodules that are replaced, parameters that are frozen by pattern.
#include <algorithm>
#include <unordered_set>
#include <utility>

#include "lockstep/base/byte_reader_internal.h"
#include "lockstep/base/check_internal.h"
#include "lockstep/base/edit_distance_internal.h"
#include "lockstep/nn/module_internal.h"
#include "lockstep/nn/module_runner_internal.h"
#include "lockstep/tensor/random/random_draws_internal.h"

namespace lockstep::nn {
namespace {

std::vector<std::string> paths_of(Module& module) {
  std::vector<std::string> paths;
  for (const auto& entry : module.named_modules()) paths.push_back(entry.first);
  return paths;
}

}  // namespace

std::string nearest(const std::string& name, std::vector<std::string> names) {
  std::erase_if(names, [](const std::string& each) { return each.empty() || each.size() > 256; });
  if (names.empty() || names.size() > 10'000 || name.size() > 256) return {};  // too slow for an error message
  std::ranges::stable_sort(names, {}, [&](const std::string& each) { return edit_distance(each, name); });
  names.resize(std::min<std::size_t>(names.size(), 3));
  return fmt::format("; the nearest {} {}", names.size() == 1 ? "is" : "are", enumerate(names, 3));
}

const Module& current_module(const Module& module) { return module.current(); }

bool InTrainingMode::holds(const Module& module) {
  for (const Module* each = &module.current(); each; each = each->parent_) {
    if (each->training_modes_ > 0) return true;
  }
  return false;
}

void throw_other_type(const Module& module) {
  throw InvalidArgument(fmt::format(
      "forward of {}: replace() has put a {} in its place, and only calls as module(x) are forwarded to another "
      "type\nCall the module as module(x), or put a module of the old type there",
      lockstep::in_quotes(module.name()), module.type_name()));
}

// The module that a call of this one runs. The new module, or one below it, that calls the old one would call itself.
const Module& Module::called() const {
  const Module& by = current();
  const random::SiteGuard site(this, [](const void*, const void*) { return random::kUserSite; });
  for (auto* caller = static_cast<const Module*>(site.outer_module()); caller; caller = caller->parent_)
    LOCKSTEP_CHECK(caller != &by,
                   "{0}: calls the module {1} whose place it has, and so itself\nMove the old module into the new one: "
                   "add(\"base\", std::move(old))",
                   by.type_name(), lockstep::in_quotes(by.name_));
  return by;
}

// Throws InvalidArgument if `by` cannot be put at `path`.
std::shared_ptr<Module>& Module::place_to_replace(const std::string& path, const Module* by) {
  Module* parent = &current();
  LOCKSTEP_CHECK(!path.empty(), "replace: the path is empty; name a module below {}", type_name());
  LOCKSTEP_CHECK(by, "replace: the new module for {} is null", lockstep::in_quotes(path));
  LOCKSTEP_CHECK(
      !by->parent_,
      "replace: the new module for {} is the child {} of {}\nConstruct another one; to share its parameters, "
      "pass their handles to add_parameter",
      lockstep::in_quotes(path), lockstep::in_quotes(by->name_), by->parent_->type_name());
  std::shared_ptr<Module>* place = nullptr;
  for (std::size_t begin = 0; begin <= path.size();) {
    const std::size_t end = std::min(path.find('.', begin), path.size());
    const std::string name = path.substr(begin, end - begin);
    if (place) parent = place->get();
    const auto found = std::ranges::find_if(parent->children_, [&](const auto& child) { return child->name_ == name; });
    if (found == parent->children_.end())
      throw InvalidArgument(fmt::format("replace: {} has no module {}{}", type_name(), lockstep::in_quotes(path),
                                        nearest(path, paths_of(*this))));
    place = &*found;
    begin = end + 1;
  }
  std::vector<const Module*> concerned;
  for (const Module* each = parent; each; each = each->parent_) concerned.push_back(each);
  for (const Module* each : (*place)->modules()) concerned.push_back(each);
  for (const Module* each : concerned)
    LOCKSTEP_CHECK(each->training_modes_ == 0 && runners_of(*each).empty(),
                   "replace: {} is in a model that a training mode or a parallel call holds, which would keep the old "
                   "module\nReplace it before, and construct the mode afterwards",
                   lockstep::in_quotes(path));
  return *place;
}

Module& Module::replace(const std::string& path, std::unique_ptr<Module> module) {
  std::shared_ptr<Module>& place = place_to_replace(path, module.get());
  module->name_ = place->name_;
  module->label_ = module->name_ + " " + module->type_name();
  module->parent_ = place->parent_;
  std::shared_ptr<Module> old = std::exchange(place, std::move(module));
  old->stand_for(place.get());
  place->replaced_.push_back(std::move(old));
  return *place;
}

// Makes this module and its children stand for `by` and those of its children with the same names, which own them from
// then on. Parameters and buffers that `by` does not have become undefined; all of them if it is null.
void Module::stand_for(Module* by) {
  const auto follow = [&](auto entries, const auto& nothing) {
    for (const auto& [name, handle] : this->*entries) {
      const auto* other = &nothing;
      for (const auto& entry : (by ? *by : *this).*entries) {
        if (by && entry.name == name) other = entry.handle.get();
      }
      *handle = *other;
    }
  };
  follow(&Module::parameters_, Parameter(Tensor()));
  follow(&Module::buffers_, Buffer(Tensor()));
  for (auto& child : children_) {
    Module* of_child = nullptr;
    for (const auto& other : (by ? *by : *this).children_) {
      if (by && other->name_ == child->name_) of_child = other.get();
    }
    child->stand_for(of_child);
    if (of_child) of_child->replaced_.push_back(std::move(child));
  }
  std::erase(children_, nullptr);
  for (const auto& earlier : replaced_) earlier->stand_for(by);
  if (!by) return;
  replacement_ = by;
  parent_ = by;
}

std::int64_t Module::set_requires_grad(const char* op, const std::string& pattern, bool on) {
  std::vector<Tensor> masters;
  std::vector<std::string> names = paths_of(*this);
  std::unordered_set<const TensorSlot*> seen;
  visit("", [&](const std::string& path, const Module& module) {
    for (const auto& [name, handle] : module.parameters_) {
      if (!handle->master().defined()) continue;
      const ParameterSlice* const slice = handle->slice();
      names.push_back(join(path, slice ? name.substr(0, name.size() - slice_name("", *slice).size()) : name));
      if (!matches_any({pattern}, names.back()) || !seen.insert(handle->id()).second) continue;
      LOCKSTEP_CHECK(handle->sharding() == Sharding::kNone,
                     "{}: {} is distributed over ranks; call {} before the training mode is constructed", op,
                     names.back(), op);
      masters.push_back(handle->master());
    }
  });
  if (masters.empty()) {
    const std::string stem = pattern.ends_with(".*") ? pattern.substr(0, pattern.size() - 2) : pattern;
    throw InvalidArgument(fmt::format("{}: the pattern {} describes no parameter of {}{}", op,
                                      lockstep::in_quotes(pattern), type_name(), nearest(stem, names)));
  }
  for (const Tensor& master : masters) {
    master.requires_grad_(on);
    if (!on) master.set_grad(Tensor());
  }
  return static_cast<std::int64_t>(masters.size());
}

}  // namespace lockstep::nn
