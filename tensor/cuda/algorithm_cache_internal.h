// Which algorithm a library has chosen for an operation, so that it is asked once for the same sizes.
#pragma once

#include <cstddef>
#include <map>

#include "lockstep/version.h"

namespace lockstep::cuda {

// Of one thread. A program whose sizes never repeat starts over after `kMost` of them.
template <class Key, class Algorithm>
class AlgorithmCache {
 public:
  static constexpr std::size_t kMost = 4096;

  // What choose() said for this key, now or before. What it throws is not kept. Whoever learns more may write it there.
  template <class Choose>
  Algorithm& find(const Key& key, Choose choose) {
    if (const auto known = known_.find(key); known != known_.end()) return known->second;
    const Algorithm chosen = choose();
    if (known_.size() >= kMost) known_.clear();
    return known_.emplace(key, chosen).first->second;
  }
  std::size_t size() const { return known_.size(); }

 private:
  std::map<Key, Algorithm> known_;
};

}  // namespace lockstep::cuda
