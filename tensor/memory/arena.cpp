#include <algorithm>
#include <iterator>

#include "lockstep/tensor/memory/arena_internal.h"
#include "lockstep/tensor/memory/capture_internal.h"

namespace lockstep {
namespace {

constexpr std::size_t kGrain = 512;              // as cudaMalloc aligns
constexpr std::size_t kSmallestSlab = 1u << 20;  // one slab serves many small tensors

std::size_t round_up(std::size_t bytes, std::size_t grain) {
  return (std::max<std::size_t>(bytes, 1) + grain - 1) / grain * grain;
}

}  // namespace

Arena::Arena(Accelerator& accelerator, int index, std::size_t expected) : accelerator_(accelerator), index_(index) {
  grow(expected);
}

Arena::~Arena() {
  for (std::byte* const slab : slabs_) {
    if (!capture::defer_free(slab, 0, {DeviceType::kCuda, index_}, true))
      accelerator_.deallocate_unordered(slab, index_);
  }
}

void Arena::grow(std::size_t at_least) {
  const std::size_t bytes = round_up(std::max(at_least, bytes_ / 2), kSmallestSlab);
  auto* const slab = static_cast<std::byte*>(accelerator_.allocate_unordered(bytes, index_));
  slabs_.insert(slab);
  free_.emplace(slab, bytes);
  bytes_ += bytes;
}

// Takes the smallest sufficient block, so that large blocks stay whole for large requests.
void* Arena::allocate(std::size_t bytes) {
  const std::size_t size = round_up(bytes, kGrain);
  const std::lock_guard lock(mutex_);
  const auto find = [&] {
    auto best = free_.end();
    for (auto block = free_.begin(); block != free_.end(); ++block) {
      if (block->second >= size && (best == free_.end() || block->second < best->second)) best = block;
    }
    return best;
  };
  auto found = find();
  if (found == free_.end()) {
    grow(size);
    found = find();
  }
  if (found->second > size) free_.emplace(found->first + size, found->second - size);
  auto node = free_.extract(found);
  node.mapped() = size;
  return taken_.insert(std::move(node)).position->first;
}

// Moves the block's map node, so that this function does not allocate.
void Arena::deallocate(void* data) noexcept {
  const std::lock_guard lock(mutex_);
  auto node = taken_.extract(static_cast<std::byte*>(data));
  if (node.empty()) return;
  join_neighbours(free_.insert(std::move(node)).position);
}

void Arena::join_neighbours(Blocks::iterator block) {
  const auto follows = [&](Blocks::iterator a, Blocks::iterator b) {
    return a->first + a->second == b->first && !slabs_.contains(b->first);
  };
  if (const auto next = std::next(block); next != free_.end() && follows(block, next)) {
    block->second += next->second;
    free_.erase(next);
  }
  if (block == free_.begin()) return;
  const auto before = std::prev(block);
  if (!follows(before, block)) return;
  before->second += block->second;
  free_.erase(block);
}

}  // namespace lockstep
