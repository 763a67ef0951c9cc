#include "lockstep/parallel/simulate/collective_hops_internal.h"

#include <bit>

namespace lockstep::parallel {

CollectiveHops::CollectiveHops(Kind kind, int ranks, std::int64_t count, int root)
    : kind_(kind), ranks_(ranks), count_(kind == Kind::kBarrier ? 0 : count), root_(root),
      levels_(std::bit_width(static_cast<unsigned>(ranks - 1))) {
  switch (kind) {
    case Kind::kBroadcast:
    case Kind::kReduce:
      steps_ = levels_;
      break;
    case Kind::kBarrier:
      steps_ = 2 * levels_;
      break;
    case Kind::kAllGather:
    case Kind::kReduceScatter:
      steps_ = ranks - 1;
      break;
    case Kind::kEmpty:
      break;
    default:
      steps_ = 1;
  }
}

// Adds messages between ranks that are 2^level apart, counted from the root.
void CollectiveHops::add_tree(std::vector<Hop>& hops, int level, bool up) const {
  const int distance = 1 << level;
  for (int parent = 0; parent + distance < ranks_; parent += 2 * distance) {
    const int a = (parent + root_) % ranks_, b = (parent + distance + root_) % ranks_;
    hops.push_back({.from = up ? b : a, .to = up ? a : b, .end = count_});
  }
}

std::vector<Hop> CollectiveHops::step(int number) const {
  std::vector<Hop> hops;
  const bool is_up = kind_ == Kind::kReduce || (kind_ == Kind::kBarrier && number < levels_);
  switch (kind_) {
    case Kind::kBroadcast:
    case Kind::kReduce:
    case Kind::kBarrier:
      add_tree(hops, is_up ? number : levels_ - 1 - number % levels_, is_up);
      break;
    case Kind::kAllGather:
    case Kind::kReduceScatter:
      for (int from = 0; from < ranks_; ++from)
        hops.push_back({.from = from, .to = (from + 1) % ranks_, .end = count_});
      break;
    case Kind::kGather:
    case Kind::kScatter:
      for (int k = 1; k < ranks_; ++k) {
        const int other = (root_ + k) % ranks_;
        const bool gathers = kind_ == Kind::kGather;
        hops.push_back({.from = gathers ? other : root_, .to = gathers ? root_ : other, .end = count_});
      }
      break;
    default:  // all to all, beginning with the next rank, so that ranks send to different ranks
      for (int k = 1; k < ranks_; ++k) {
        for (int from = 0; from < ranks_; ++from)
          hops.push_back({.from = from, .to = (from + k) % ranks_, .end = count_});
      }
  }
  return hops;
}

}  // namespace lockstep::parallel
