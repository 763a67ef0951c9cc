// The engine's map from nodes and leaves to their place in a backward: open addressing on the address, without an
// allocation for small graphs.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "lockstep/tensor/error.h"

namespace lockstep::inline LOCKSTEP_ABI::autograd {

class StopIndex {
 public:
  // The index stored for `key`; -1 where it is new, for the caller to replace. Valid until the next call.
  std::int32_t& at(const void* key) {
    if (2 * (used_ + 1) > size_) grow();
    Slot& slot = find(slots(), size_, key);
    if (!slot.key) {
      slot.key = key;
      slot.index = -1;
      ++used_;
    }
    return slot.index;
  }

 private:
  static constexpr std::size_t kInside = 32;  // a power of two
  struct Slot {
    const void* key = nullptr;
    std::int32_t index = -1;
  };

  Slot* slots() { return grown_.empty() ? inside_ : grown_.data(); }

  static Slot& find(Slot* slots, std::size_t size, const void* key) {
    const std::size_t mask = size - 1;
    std::size_t i = (reinterpret_cast<std::uintptr_t>(key) >> 4) * 0x9E3779B97F4A7C15u >> 32 & mask;
    while (slots[i].key && slots[i].key != key) i = (i + 1) & mask;
    return slots[i];
  }

  void grow() {
    std::vector<Slot> larger(4 * size_);
    for (std::size_t i = 0; i < size_; ++i) {
      if (slots()[i].key) find(larger.data(), larger.size(), slots()[i].key) = slots()[i];
    }
    size_ = larger.size();
    grown_ = std::move(larger);
  }

  Slot inside_[kInside];
  std::vector<Slot> grown_;
  std::size_t size_ = kInside, used_ = 0;
};

}  // namespace lockstep::inline LOCKSTEP_ABI::autograd
