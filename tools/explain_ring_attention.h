// lockstep-explain ring_attention: the parts of attention that each rank computes in each step, by the library's rule.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "lockstep/parallel/model_parallel/context_blocks_internal.h"

struct RingAttentionQuestion {
  int ranks = 4;
  bool plain = false;      // ContextAttention::kRing instead of kRingZigzag
  bool no_causal = false;  // attention without a mask
};

// Attention of a rank's queries to the keys of one rank. A sequence block is two half blocks in both kinds of ring.
struct SeenAttention {
  int keys_of = 0;
  lockstep::parallel::BlockPair part = {};  // in half blocks
  std::int64_t work = 0;                    // in pairs of half blocks
};

// A pair of a half block of queries and a half block of keys.
struct SeenPair {
  int step = 0;  // from 1; 0: the mask leaves nothing
  bool is_half = false;
};

struct SeenRing {
  RingAttentionQuestion question;
  std::vector<std::vector<std::int64_t>> half_blocks;  // by rank
  std::vector<int> owners;                             // ranks, by half block
  std::vector<std::vector<SeenAttention>> steps;       // by rank and step
  std::vector<std::vector<SeenPair>> pairs;            // by half block of queries and half block of keys
  std::vector<std::int64_t> slowest;                   // by step: the largest work of a rank
  std::int64_t work = 0;                               // of all ranks

  std::int64_t time() const;  // the sum over all steps of the slowest rank
  double busy() const;        // the part of that time in which an average rank computes
};

SeenRing ring_of(const RingAttentionQuestion& question);
std::string ring_name(const RingAttentionQuestion& question);
std::string ring_text(const SeenRing& ring);
std::string ring_html(const SeenRing& ring);
