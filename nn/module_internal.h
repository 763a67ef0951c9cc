// Traversal of a tree of modules, and lists of names in messages. Not installed.
#pragma once

#include <string>
#include <vector>

#include "lockstep/nn/module.h"

namespace lockstep::nn {

inline std::string join(const std::string& path, const std::string& name) {
  return path.empty() ? name : path + "." + name;
}

// `"a", "b" and 3 more`
std::string enumerate(const std::vector<std::string>& names);

// Calls visitor(path, module) for this module and all below it, parents first.
template <class Visit>
void Module::visit(const std::string& path, const Visit& visitor) const {
  visitor(path, *this);
  for (const auto& child : children_) child->visit(join(path, child->name_), visitor);
}

}  // namespace lockstep::nn
