// The exchange with which every collective of a MessageGroup begins, by recursive doubling.
//
// With p the largest power of two up to the number n of ranks: rank p + j first sends its part to rank j. Then ranks
// below p exchange with rank ^ 1, rank ^ 2, rank ^ 4, ... all parts that they have. Last, rank j sends them all to rank
// p + j. So a rank sends at most ceil(log2 n) messages, and n - 1 parts or their sums reach every rank.
//
// The parts that a rank has are those of two ranges of ranks, one below p and one from p on, and each exchange merges a
// range with the one next to it. Sums of such ranges are the canonical order: pairs (0,1), (2,3), ...; pairs of pairs;
// what is left over at the end joins last.
#pragma once

#include <vector>

namespace lockstep::parallel {

// Ranks [begin, end).
struct RankRange {
  int begin = 0, end = 0;
  bool empty() const { return begin >= end; }
  bool contains(int rank) const { return rank >= begin && rank < end; }
};

// The ranks whose parts a rank has. There are no high ones if the number of ranks is a power of two.
struct HeldParts {
  RankRange low, high;
  bool contains(int rank) const { return low.contains(rank) || high.contains(rank); }
};

// A rank's messages of one round. In a round with both, it sends before it receives.
struct Round {
  int to = -1, from = -1;   // the other ranks; -1: none
  HeldParts held = {};      // before this round: what is sent
  HeldParts received = {};  // the other rank's
  HeldParts held_after = {};
};

std::vector<Round> exchange_rounds(int rank, int size);

}  // namespace lockstep::parallel
