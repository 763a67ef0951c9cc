// Traversal of a tree of modules, lists of names in messages. Not installed.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "lockstep/nn/module.h"

namespace lockstep::nn {

inline std::string join(const std::string& path, const std::string& name) {
  return path.empty() ? name : path + "." + name;
}

// The path of the module that has the parameter or buffer of this name: "blocks.0" for "blocks.0.weight".
inline std::string_view module_path(std::string_view name) {
  const std::size_t dot = name.rfind('.');
  return name.substr(0, dot == std::string_view::npos ? 0 : dot);
}

// Whether `pattern`, in which '*' stands for any text without '.', describes the whole of `path`.
bool matches(std::string_view pattern, std::string_view path);
// Whether one of the patterns describes `path` or a module above it, or there are none.
bool matches_any(const std::vector<std::string>& patterns, std::string_view path);

// The name of a weight or module, in quotes. Names of up to 120 bytes are whole, so that they can be copied.
std::string quoted_name(std::string_view name);
// `"a", "b" and 3 more`, with at most `shown` names.
std::string enumerate(const std::vector<std::string>& names, std::size_t shown = 2);
// `; the nearest are "fc1", "fc2"`: those of `names` that are most similar to `name`, at most three.
std::string nearest(const std::string& name, std::vector<std::string> names);

// Replaces the module's own parameter `name` by slices of it, which take its place in lists under the names of their
// slices. Other modules that share the parameter keep it; the module's handle becomes undefined, and copies of the handle
// are marked as kCut. There must be a slice.
void replace_parameter(Module& module, const std::string& name, const std::vector<Parameter>& slices);
// Makes `parameter` the module's own parameter of this name, which lists and the module's handle then have; a tied
// parameter keeps its other handles. Undefined parameters are not listed.
void set_parameter(Module& module, const std::string& name, const Parameter& parameter);
// "blocks.0.up.weight[2/4]", or the last part of it for a slice whose name is that within the module.
std::string slice_name(const std::string& name, const ParameterSlice& slice);
// Throws InvalidArgument if a parameter is a slice, "op: up.weight is slice 2 of 4 of a parameter ...; fix", or in a
// stage of a pipeline.
void refuse_parts(const char* op, const std::vector<Parameter>& parameters, const char* fix);
// A parameter or buffer of a module whose parameters may be slices.
struct ListedTensor {
  std::string name;                       // "up.weight", or "up.weight[2/4]" for a slice
  Tensor tensor;                          // detached; shares storage with the module's
  const ParameterSlice* slice = nullptr;  // null: a whole tensor
  const TensorSlot* id = nullptr;         // of the parameter or buffer

  std::string whole_name() const;  // "up.weight", that of the tensor before tensor parallelism has cut it
};
// The entries of state_dict(), with slices in the places of whole parameters. Tied parameters have several.
std::vector<ListedTensor> listed_tensors(const Module& module);
// The same, without the slices' positions.
StateDict listed_state(const Module& module);

// Calls visitor(path, module) for this module and all below it, parents first.
template <class Visit>
void Module::visit(const std::string& path, const Visit& visitor) const {
  visitor(path, current());
  for (const auto& child : owned_children()) child->visit(join(path, child->name_), visitor);
}

// Makes `handle` the module's own of this name, if it has one, and that of the modules that stand for it.
template <class Handle>
void Module::rebind(std::vector<Named<Handle>> Module::*entries, const std::string& name, const Handle& handle) {
  for (auto& entry : this->*entries) {
    if (entry.name == name) *entry.handle = handle;
  }
  for (const auto& old : replaced_) old->rebind(entries, name, handle);
}

}  // namespace lockstep::nn
