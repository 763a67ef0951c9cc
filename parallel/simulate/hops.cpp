#include "lockstep/parallel/simulate/hops.h"

#include <algorithm>
#include <bit>

#include "lockstep/base/check_internal.h"

namespace lockstep::parallel {
namespace {

int ceil_log2(int n) { return std::bit_width(static_cast<unsigned>(n - 1)); }

// Returns the chunk that participant v keeps: each bit of v, the lowest first, selects a half of its elements.
int chunk_of(int v, int levels) {
  int chunk = 0;
  for (int k = 0; k < levels; ++k) chunk |= (v >> k & 1) << (levels - 1 - k);
  return chunk;
}

}  // namespace

const char* name(Algorithm algorithm) {
  switch (algorithm) {
    case Algorithm::kRing:
      return "ring";
    case Algorithm::kTree:
      return "tree";
    case Algorithm::kHalvingDoubling:
      return "halving_doubling";
    case Algorithm::kDoubling:
      return "doubling";
    default:
      return "direct";
  }
}

const char* name(Collective collective) {
  return collective == Collective::kAllReduce       ? "all_reduce"
         : collective == Collective::kReduceScatter ? "reduce_scatter"
                                                    : "all_gather";
}

bool HopPlan::exists(Algorithm algorithm, Collective collective) {
  return collective == Collective::kAllReduce || algorithm == Algorithm::kDirect || algorithm == Algorithm::kRing;
}

HopPlan::HopPlan(Algorithm algorithm, int ranks, std::int64_t count, Collective collective)
    : algorithm_(algorithm), collective_(collective), ranks_(ranks), count_(count) {
  LOCKSTEP_CHECK(ranks >= 1 && count >= 0, "{}: {} ranks and {} elements; expected 1 rank or more, 0 elements or more",
                 parallel::name(collective), ranks, count);
  LOCKSTEP_CHECK(exists(algorithm, collective), "{}: there is no algorithm {}; expected direct or ring",
                 parallel::name(collective), parallel::name(algorithm));
  if (ranks == 1) return;
  switch (algorithm) {
    case Algorithm::kDirect:
      steps_ = 2;
      break;
    case Algorithm::kRing:
      steps_ = 2 * (ranks - 1);
      break;
    case Algorithm::kTree:
      levels_ = ceil_log2(ranks);
      steps_ = 2 * levels_;
      break;
    case Algorithm::kHalvingDoubling:
    case Algorithm::kDoubling:
      participants_ = static_cast<int>(std::bit_floor(static_cast<unsigned>(ranks)));
      levels_ = ceil_log2(participants_);
      steps_ = (algorithm == Algorithm::kDoubling ? 1 : 2) * levels_ + (participants_ < ranks ? 2 : 0);
      break;
  }
  if (collective == Collective::kAllReduce) return;
  steps_ /= 2;
  if (collective == Collective::kAllGather) first_ = steps_;
}

int HopPlan::reduce_steps() const {
  if (algorithm_ == Algorithm::kDoubling) return steps_ - (participants_ < ranks_ ? 1 : 0);
  return collective_ == Collective::kAllReduce ? steps_ / 2 : collective_ == Collective::kReduceScatter ? steps_ : 0;
}

void HopPlan::add(std::vector<Hop>& hops, int from, int to, std::int64_t begin, std::int64_t end, bool adds) const {
  if (begin < end) hops.push_back({.from = from, .to = to, .begin = begin, .end = end, .adds = adds});
}

std::vector<Hop> HopPlan::step(int number) const {
  LOCKSTEP_CHECK(number >= 0 && number < steps_, "{}: step {} of {}", parallel::name(collective_), number, steps_);
  number += first_;
  std::vector<Hop> hops;
  switch (algorithm_) {
    case Algorithm::kDirect:
      add_direct(hops, number == 0);
      break;
    case Algorithm::kRing:
      add_ring(hops, number);
      break;
    case Algorithm::kTree:
      add_tree(hops, number);
      break;
    case Algorithm::kHalvingDoubling:
      add_halving(hops, number);
      break;
    case Algorithm::kDoubling:
      add_doubling(hops, number);
      break;
  }
  return hops;
}

// Each rank sends to the next rank first, then to the one after that, so that no two send to the same rank together.
void HopPlan::add_direct(std::vector<Hop>& hops, bool adds) const {
  for (int k = 1; k < ranks_; ++k) {
    for (int from = 0; from < ranks_; ++from) {
      const int to = (from + k) % ranks_, owner = adds ? to : from;
      add(hops, from, to, bound(owner, ranks_), bound(owner + 1, ranks_), adds);
    }
  }
}

// The sum of chunk r starts at rank r + 1 and is passed around the ring until rank r completes it; then the sums are
// passed around.
void HopPlan::add_ring(std::vector<Hop>& hops, int number) const {
  const bool adds = number < ranks_ - 1;
  const int turn = adds ? number + 1 : number - (ranks_ - 1);
  for (int from = 0; from < ranks_; ++from) {
    const int chunk = (from + ranks_ - turn) % ranks_;
    add(hops, from, (from + 1) % ranks_, bound(chunk, ranks_), bound(chunk + 1, ranks_), adds);
  }
}

// Neighbours first, then neighbours of neighbours: rank 0's additions are those of the canonical order.
void HopPlan::add_tree(std::vector<Hop>& hops, int number) const {
  const bool adds = number < levels_;
  const int distance = 1 << (adds ? number : 2 * levels_ - 1 - number);
  for (int parent = 0; parent + distance < ranks_; parent += 2 * distance) {
    const int child = parent + distance;
    add(hops, adds ? child : parent, adds ? parent : child, 0, count_, adds);
  }
}

// Before the halvings rank 2 i + 1 sends all its elements to rank 2 i, and is idle until it receives the sums at the
// end.
void HopPlan::add_fold(std::vector<Hop>& hops, bool adds) const {
  for (int i = 0; i < ranks_ - participants_; ++i)
    add(hops, adds ? 2 * i + 1 : 2 * i, adds ? 2 * i : 2 * i + 1, 0, count_, adds);
}

// At level k partners are 2^k participants apart and have the same part of the elements. Each keeps one half and sends
// the other. The levels in reverse order distribute the sums.
void HopPlan::add_halving(std::vector<Hop>& hops, int number) const {
  const int extra = ranks_ - participants_;
  const bool adds = number < steps_ / 2;
  const int from_end = adds ? number : steps_ - 1 - number;
  if (extra > 0 && from_end == 0) return add_fold(hops, adds);
  const int level = from_end - (extra > 0 ? 1 : 0);
  const int chunks = participants_ >> (level + 1);  // in one half
  for (int v = 0; v < participants_; ++v) {
    const int partner = v ^ (1 << level);
    const int first = chunk_of(adds ? partner : v, levels_) / chunks * chunks;  // first chunk of the receiver's part
    add(hops, rank_of(v), rank_of(partner), bound(first, participants_), bound(first + chunks, participants_), adds);
  }
}

// At each level every participant sends all its elements to its partner, and adds those of the partner.
void HopPlan::add_doubling(std::vector<Hop>& hops, int number) const {
  const bool folds = participants_ < ranks_;
  if (folds && (number == 0 || number == steps_ - 1)) return add_fold(hops, number == 0);
  const int distance = 1 << (number - (folds ? 1 : 0));
  for (int v = 0; v < participants_; ++v) add(hops, rank_of(v), rank_of(v ^ distance), 0, count_, true);
}

// The rank of a participant: with folds, every second one of the first ranks, and all others.
int HopPlan::rank_of(int participant) const {
  const int extra = ranks_ - participants_;
  return participant < extra ? 2 * participant : participant + extra;
}

// In reduce_scatter a rank sends all but the part that it keeps; in all_gather its own part to each rank, or around the
// ring all parts but the one that the next rank had at first.
std::int64_t HopPlan::sent_in_half_by(int rank) const {
  const auto own = [&](int chunk) { return bound(chunk + 1, ranks_) - bound(chunk, ranks_); };
  if (collective_ == Collective::kReduceScatter) return count_ - own(rank);
  return algorithm_ == Algorithm::kDirect ? (ranks_ - 1) * own(rank) : count_ - own((rank + 1) % ranks_);
}

std::int64_t HopPlan::sent_by(int rank) const {
  const auto own = [&](int chunk, int chunks) { return bound(chunk + 1, chunks) - bound(chunk, chunks); };
  if (ranks_ == 1) return 0;
  if (collective_ != Collective::kAllReduce) return sent_in_half_by(rank);
  switch (algorithm_) {
    case Algorithm::kDirect:
      return count_ - own(rank, ranks_) + (ranks_ - 1) * own(rank, ranks_);
    case Algorithm::kRing:  // all partial sums but its own chunk's, then all sums but the next rank's
      return 2 * count_ - own(rank, ranks_) - own((rank + 1) % ranks_, ranks_);
    case Algorithm::kTree: {
      std::int64_t children = 0;
      for (int d = 1; d < ranks_ && (rank & d) == 0; d *= 2) children += rank + d < ranks_ ? 1 : 0;
      return (children + (rank > 0 ? 1 : 0)) * count_;
    }
    case Algorithm::kDoubling: {
      const int folded = 2 * (ranks_ - participants_);
      if (rank < folded && rank % 2 == 1) return count_;
      return (levels_ + (rank < folded ? 1 : 0)) * count_;
    }
    case Algorithm::kHalvingDoubling: {
      const int extra = ranks_ - participants_;
      if (rank < 2 * extra && rank % 2 == 1) return count_;
      const int v = rank < 2 * extra ? rank / 2 : rank - extra;
      std::int64_t sent = rank < 2 * extra ? count_ : 0;
      sent += count_ - own(chunk_of(v, levels_), participants_);  // all but the chunk it keeps
      for (int k = 0; k < levels_; ++k) {                         // in reverse order, twice as much at each level
        const int chunks = participants_ >> (k + 1), first = chunk_of(v, levels_) / chunks * chunks;
        sent += bound(first + chunks, participants_) - bound(first, participants_);
      }
      return sent;
    }
  }
  return 0;
}

double HopPlan::ideal_sent() const {
  if (ranks_ == 1) return 0;
  const auto p = static_cast<double>(count_);
  if (algorithm_ == Algorithm::kTree) return levels_ * p;
  if (algorithm_ == Algorithm::kDoubling) return (levels_ + (participants_ < ranks_ ? 1 : 0)) * p;
  const int n = algorithm_ == Algorithm::kHalvingDoubling ? participants_ : ranks_;
  if (collective_ != Collective::kAllReduce) return static_cast<double>(n - 1) / n * p;
  return 2.0 * (n - 1) / n * p + (n < ranks_ ? p : 0);
}

}  // namespace lockstep::parallel
