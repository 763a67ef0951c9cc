// lockstep-explain memory: the memory of a rank in each stage of ShardedDataParallel, by closed forms.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

struct MemoryQuestion {
  int stage = -1;  // 0: DDP; 1 to 3: ShardedDataParallel; -1: all of them
  int ranks = 4;
  std::int64_t parameters = 100'000'000;  // f32
  int units = 12;                         // of equal size, with all parameters
  int micro_batches = 1;                  // per rank
  std::string model = {};                 // gpt: the parameters and units of GPT-2; empty: as above
};

// Bytes of one rank.
struct RankMemory {
  std::int64_t parameters = 0, gradients = 0, optimizer = 0, units = 0;
  std::int64_t total() const { return parameters + gradients + optimizer + units; }
};

// Elements of the root unit, then of the other units.
using UnitElements = std::vector<std::int64_t>;

// The closed forms of ShardedDataParallel::plan for f32 and an optimizer with two buffers per parameter (Adam); stage 0
// is DistributedDataParallel.
RankMemory memory_of(int stage, int ranks, int micro_batches, const UnitElements& units);
std::string memory_text(const MemoryQuestion& question);
