// Caches the algorithm that a library chose for an operation, so that each size is queried once.
#pragma once

#include <cstddef>
#include <map>

#include "lockstep/version.h"

namespace lockstep::cuda {

// Used by one thread. The cache is cleared after `kMost` different keys.
template <class Key, class Algorithm>
class AlgorithmCache {
 public:
  static constexpr std::size_t kMost = 4096;

  // The result of choose() for this key, cached. Exceptions are not cached. The caller may update the returned entry.
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
