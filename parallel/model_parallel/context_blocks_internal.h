// Sequence blocks: which positions a rank has, and which pairs of sequence blocks attend to each other. Not installed.
#pragma once

#include <cstdint>
#include <string_view>

#include "lockstep/parallel/model_parallel/context_parallel.h"

namespace lockstep::parallel {

const char* name_of(ContextAttention attention);  // "kRing"

// The part of a sequence block's queries and another's keys in which causal attention has weights. Keys are the first
// `keys` of their sequence block.
struct BlockPair {
  std::int64_t first_query, queries, keys;  // queries 0: no weights
  bool causal;                              // query i attends to keys 0 to i of the pair
};

struct SequenceBlocks {
  int count, own;  // own: this rank's
  bool is_zigzag;

  // Equal parts of the sequence: with zigzag two half blocks for each rank (own, 2 count - 1 - own), otherwise one.
  int parts() const { return is_zigzag ? 2 * count : count; }
  // The sequence block that reaches this rank after `step` passes round the ring.
  int reached(int step) const { return (own - step + count) % count; }
  BlockPair pair(int queries_of, int keys_of, std::int64_t time, bool causal) const;
  // The part of `x`, whose dimension `dim` is the whole sequence, that belongs to `block`.
  Tensor part(const Tensor& x, std::int64_t dim, int block) const;
};

// (ranks, ...): `own`, which is contiguous, of all ranks.
Tensor of_all_ranks(ProcessGroup& group, const Tensor& own, Phase phase, std::string_view name);

}  // namespace lockstep::parallel
