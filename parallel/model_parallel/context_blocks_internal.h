// The blocks of a sequence: which positions a rank has, and which pairs of blocks attend to each other. Not installed.
#pragma once

#include <cstdint>

#include "lockstep/parallel/model_parallel/context_parallel.h"

namespace lockstep::parallel {

// The part of a block of queries and a block of keys in which causal attention has weights. Keys are the first `keys`
// of their block.
struct BlockPair {
  std::int64_t first_query, queries, keys;  // queries 0: no weights
  bool causal;                              // query i attends to keys 0 to i of the pair
};

struct SequenceBlocks {
  int count, own;  // own: this rank's block
  bool is_zigzag;

  // Chunks of a block: with zigzag (own, 2 count - 1 - own) of 2 count, otherwise `own` of `count`.
  int chunks() const { return is_zigzag ? 2 * count : count; }
  // The block that this rank folds after `step` others: as a ring passes them on.
  int folded(int step) const { return (own - step + count) % count; }
  BlockPair pair(int queries_of, int keys_of, std::int64_t time, bool causal) const;
  // The part of `x`, whose dimension `dim` is the whole sequence, that belongs to `block`.
  Tensor part(const Tensor& x, std::int64_t dim, int block) const;
};

}  // namespace lockstep::parallel
