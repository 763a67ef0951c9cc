// The strategies of training: their names, and the names that DeepSpeed and Lightning use.
#pragma once

#include <optional>
#include <string>
#include <vector>

namespace samples {

// How a strategy distributes the model over the ranks.
struct Sharded {
  int stage = 1;  // 1: optimizer state; 2: also gradients; 3: also parameters
  bool offloads = false;
};

// Our strategies, without compare: single, accumulate, dp, ddp, zero1, ...
const std::vector<std::string>& strategies();
// Our name of a strategy: "zero3" for "fsdp" and "deepspeed_stage_3". Empty for an unknown name.
std::string strategy_named(const std::string& name);
// All names, for errors.
std::string names_of_strategies();

// The distribution of a strategy of ShardedDataParallel; null for the other strategies.
std::optional<Sharded> sharded_of(const std::string& strategy);
// Whether the strategy is lockstep::parallel::Parallel on a mesh of ranks.
bool has_mesh(const std::string& strategy);
// Whether the strategy needs several ranks along pp, which have the layers of the model: "pipeline", or "model_parallel",
// whose ranks work one at a time.
bool is_pipeline(const std::string& strategy);
// The axis of the mesh that a strategy is about: "cp" for "context"; "dp" for a strategy without one.
std::string axis_of(const std::string& strategy);
// Whether the strategy trains in several processes, which are ranks of a group.
bool has_ranks(const std::string& strategy);

}  // namespace samples
