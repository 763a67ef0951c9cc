// Traversal of a tree of modules, loading of a state in two halves, lists of names in messages. Not installed.
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

// `"a", "b" and 3 more`
std::string enumerate(const std::vector<std::string>& names);

// The two halves of Module::load_state_dict, for `own` as the module's state_dict. The first throws InvalidArgument if a
// parameter is deferred, a shape differs or (strict) a name is missing or unexpected; the second copies.
LoadStateDictResult check_state_dict(const StateDict& own, const StateDict& dict, bool strict);
void copy_state_dict(const StateDict& own, const StateDict& dict);

// Calls visitor(path, module) for this module and all below it, parents first.
template <class Visit>
void Module::visit(const std::string& path, const Visit& visitor) const {
  visitor(path, *this);
  for (const auto& child : children_) child->visit(join(path, child->name_), visitor);
}

}  // namespace lockstep::nn
