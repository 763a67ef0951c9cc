// The engine's map from the addresses of nodes and leaves to the index of their state in a backward pass. For small
// graphs it is a short list, which needs no allocation; for larger graphs a hash table with open addressing.
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "lockstep/base/error.h"

namespace lockstep::autograd {

class StateIndex {
 public:
  // The index stored for `key`. If `key` is new, adds it with -1, for the caller to replace. The reference is valid
  // until the next call.
  std::int32_t& at(const void* key) {
    if (table_.empty()) {
      for (std::size_t i = 0; i < used_; ++i) {
        if (list_[i].key == key) return list_[i].index;
      }
      if (used_ < kListed) return (list_[used_++] = {key, -1}).index;
      grow(std::vector<Slot>(list_, list_ + kListed));
    } else if (2 * (used_ + 1) > table_.size()) {
      grow(std::exchange(table_, {}));
    }
    Slot& slot = find(key);
    if (!slot.key) {
      slot = {key, -1};
      ++used_;
    }
    return slot.index;
  }

 private:
  static constexpr std::size_t kListed = 16;  // a power of two, as the table's size must be
  struct Slot {
    const void* key;
    std::int32_t index;
  };

  Slot& find(const void* key) {
    const std::size_t mask = table_.size() - 1;
    std::size_t i = (reinterpret_cast<std::uintptr_t>(key) >> 4) * 0x9E3779B97F4A7C15u >> 32 & mask;
    while (table_[i].key && table_[i].key != key) i = (i + 1) & mask;
    return table_[i];
  }

  // Rehashes the entries of `from` into a table that is four times as large.
  [[gnu::noinline]] void grow(const std::vector<Slot>& from) {
    table_.resize(4 * from.size());
    for (const Slot& slot : from) {
      if (slot.key) find(slot.key) = slot;
    }
  }

  Slot list_[kListed];  // used while the table is empty
  std::vector<Slot> table_;
  std::size_t used_ = 0;
};

}  // namespace lockstep::autograd
