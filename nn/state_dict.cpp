#include "lockstep/nn/state_dict.h"

#include <algorithm>
#include <numeric>

#include "lockstep/tensor/byte_reader_internal.h"
#include "lockstep/tensor/check_internal.h"
#include "lockstep/tensor/ops_internal.h"

namespace lockstep {
namespace {

// Number of insertions, deletions and substitutions that turn one name into the other.
std::size_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<std::size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), 0);
  for (std::size_t i = 1; i <= a.size(); ++i) {
    std::size_t diagonal = row[0];
    row[0] = i;
    for (std::size_t j = 1; j <= b.size(); ++j) {
      const std::size_t substituted = diagonal + (a[i - 1] != b[j - 1]);
      diagonal = row[j];
      row[j] = std::min({row[j] + 1, row[j - 1] + 1, substituted});
    }
  }
  return row.back();
}

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
  throw InvalidArgument(fmt::format("StateDict: no entry {} among {}{}", lockstep::in_quotes(name), size(),
                                    near ? fmt::format("; the nearest is {}", lockstep::in_quotes(near->first)) : ""));
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
