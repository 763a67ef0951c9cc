#include "support/strategy.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <utility>

namespace samples {
namespace {

using Aliases = std::vector<std::pair<std::string, std::string>>;

const Aliases& aliases() {
  static const Aliases all = {{"fsdp", "zero3"},
                              {"single_device", "single"},
                              {"ddp_spawn", "ddp"},
                              {"ddp_sharded", "zero2"},
                              {"deepspeed_stage_1", "zero1"},
                              {"deepspeed_stage_2", "zero2"},
                              {"deepspeed_stage_2_offload", "zero2_offload"},
                              {"deepspeed_stage_3", "zero3"},
                              {"deepspeed_stage_3_offload", "zero3_offload"}};
  return all;
}

}  // namespace

const std::vector<std::string>& strategies() {
  static const std::vector<std::string> all = {"single",   "accumulate",    "dp",     "ddp",           "zero1",
                                               "zero2",    "zero2_offload", "zero3",  "zero3_offload", "model_parallel",
                                               "pipeline", "context",       "tensor", "parallel"};
  return all;
}

std::string strategy_named(const std::string& name) {
  if (std::ranges::find(strategies(), name) != strategies().end()) return name;
  const auto alias = std::ranges::find(aliases(), name, &Aliases::value_type::first);
  return alias == aliases().end() ? "" : alias->second;
}

std::string names_of_strategies() {
  std::vector<std::string> names = strategies();
  for (const auto& [name, strategy] : aliases()) names.push_back(name);
  return fmt::format("{}", fmt::join(names, ", "));
}

std::optional<Sharded> sharded_of(const std::string& strategy) {
  if (!strategy.starts_with("zero")) return std::nullopt;
  return Sharded{.stage = strategy[4] - '0', .offloads = strategy.ends_with("_offload")};
}

bool has_mesh(const std::string& strategy) {
  return strategy == "context" || strategy == "tensor" || strategy == "parallel" || is_pipeline(strategy);
}

bool is_pipeline(const std::string& strategy) { return strategy == "pipeline" || strategy == "model_parallel"; }

std::string axis_of(const std::string& strategy) {
  if (is_pipeline(strategy)) return "pp";
  return strategy == "context" ? "cp" : strategy == "tensor" ? "tp" : "dp";
}

bool has_ranks(const std::string& strategy) {
  return strategy == "ddp" || sharded_of(strategy).has_value() || has_mesh(strategy);
}

}  // namespace samples
