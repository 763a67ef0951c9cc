// Traversal of a tree of modules. Not installed.
#pragma once

#include <string>

#include "lockstep/nn/module.h"

namespace lockstep::nn {

inline std::string join(const std::string& path, const std::string& name) {
  return path.empty() ? name : path + "." + name;
}

// Calls visitor(path, module) for this module and all below it, parents first.
template <class Visit>
void Module::visit(const std::string& path, const Visit& visitor) const {
  visitor(path, *this);
  for (const auto& child : children_) child->visit(join(path, child->name_), visitor);
}

}  // namespace lockstep::nn
