#include "lockstep/nn/files/state_dict.h"

#include <algorithm>

#include "lockstep/base/byte_reader_internal.h"
#include "lockstep/base/check_internal.h"
#include "lockstep/base/edit_distance_internal.h"
#include "lockstep/nn/module_internal.h"
#include "lockstep/tensor/ops/ops_internal.h"

namespace lockstep {
namespace {

// The entry with the most similar name; null if none is similar.
const StateDict::Entry* nearest(const StateDict& dict, const std::string& name) {
  const StateDict::Entry* best = nullptr;
  std::size_t least = name.size() / 2 + 1;
  if (name.size() > 256 || dict.size() > 10'000) return nullptr;  // too slow for an error message
  for (const auto& entry : dict) {
    if (entry.first.size() > 256) continue;
    const std::size_t distance = edit_distance(entry.first, name);
    if (distance < least) {
      best = &entry;
      least = distance;
    }
  }
  return best;
}

}  // namespace

StateDict::StateDict(std::initializer_list<Entry> entries) {
  for (const auto& [name, tensor] : entries) insert(name, tensor);
}

const Tensor& StateDict::at(const std::string& name) const {
  const auto found = index_.find(name);
  if (found != index_.end()) return entries_[found->second].second;
  const Entry* near = nearest(*this, name);
  throw InvalidArgument(fmt::format("StateDict: no entry {} among {}{}", nn::quoted_name(name), size(),
                                    near ? fmt::format("; the nearest is {}", nn::quoted_name(near->first)) : ""));
}

StateDict StateDict::clone() const {
  StateDict copy;
  for (const auto& [name, tensor] : entries_) copy.insert(name, tensor.defined() ? raw::clone(tensor) : tensor);
  return copy;
}

void StateDict::insert(std::string name, Tensor tensor) {
  LOCKSTEP_CHECK(index_.emplace(name, entries_.size()).second, "StateDict: an entry {} exists already",
                 lockstep::in_quotes(name));
  entries_.emplace_back(std::move(name), std::move(tensor));
}

}  // namespace lockstep
