#include "lockstep/parallel/model_parallel/pipeline_stages_internal.h"

#include <algorithm>
#include <set>
#include <span>
#include <utility>

#include <fmt/ranges.h>

#include "lockstep/base/check_internal.h"
#include "lockstep/nn/hash_internal.h"
#include "lockstep/nn/module_runner_internal.h"
#include "lockstep/parallel/comm/device_mesh_internal.h"
#include "lockstep/parallel/step/model_check_internal.h"
#include "lockstep/tensor/kernels/kernels_internal.h"

namespace lockstep::parallel {
namespace {

ScheduleTable table_of(const char* op, const PipelineOptions& options, int ranks) {
  LOCKSTEP_CHECK(options.chunks_per_rank >= 1 && options.micro_batches_per_rank >= 1,
                 "{}: {} micro-batches and {} model chunks per rank, expected 1 or more of each", op,
                 options.micro_batches_per_rank, options.chunks_per_rank);
  if (!options.table)
    return ScheduleTable::make(options.schedule, ranks, options.micro_batches_per_rank, options.chunks_per_rank);
  const ScheduleTable& table = *options.table;
  LOCKSTEP_CHECK(
      table.ranks() == ranks && table.micro_batches() == options.micro_batches_per_rank,
      "{}: .table has {} ranks and {} micro-batches, but the axis has {} ranks and .micro_batches_per_rank is {}", op,
      table.ranks(), table.micro_batches(), ranks, options.micro_batches_per_rank);
  return table;
}

// Where each stage begins in the chain.
std::vector<std::size_t> cut(const char* op, const std::vector<ChainModule>& chain,
                             const std::vector<std::string>& split_before, int stages) {
  const auto count = static_cast<std::size_t>(stages);
  LOCKSTEP_CHECK(count <= chain.size(), "{}: {} stages for a chain of {} modules; use at most {} ranks times chunks",
                 op, stages, chain.size(), chain.size());
  std::vector<std::size_t> begins = {0};
  if (split_before.empty()) {
    for (std::size_t s = 0; s < count; ++s)
      begins.push_back(begins.back() + chain.size() / count + (s < chain.size() % count ? 1 : 0));
    return begins;
  }
  LOCKSTEP_CHECK(split_before.size() + 1 == count, "{}: .split_before names {} modules, expected {} for {} stages", op,
                 split_before.size(), count - 1, stages);
  for (const std::string& path : split_before) {
    const auto found = std::ranges::find(chain, path, &ChainModule::path);
    LOCKSTEP_CHECK(found != chain.end(), "{}: .split_before: \"{}\" is no module of the chain", op, path);
    const auto at = static_cast<std::size_t>(found - chain.begin());
    LOCKSTEP_CHECK(at > begins.back(), "{}: .split_before: \"{}\" does not come after the module before it", op, path);
    begins.push_back(at);
  }
  begins.push_back(chain.size());
  return begins;
}

struct StagePlan {
  ScheduleTable table;
  Stages stages;
};
StagePlan plan_stages(const char* op, nn::Module& module, int ranks, int rank, const PipelineOptions& options) {
  LOCKSTEP_CHECK(!stage_runner(module), "{}: the model is in stages already", op);
  StagePlan plan{.table = table_of(op, options, ranks),
                 .stages = {.chain = chain_of(op, module, options.chain), .begins = {}, .ranks = ranks, .rank = rank}};
  plan.stages.begins = cut(op, plan.stages.chain, options.split_before, plan.table.stages());
  return plan;
}

std::string modules_of(const Stages& stages, int stage) {
  const auto s = static_cast<std::size_t>(stage);
  std::vector<std::string> paths;
  for (std::size_t k = stages.begins[s]; k < stages.begins[s + 1]; ++k) paths.push_back(stages.chain[k].path);
  return fmt::format("{}", fmt::join(paths, ", "));
}

void check_ranks(const char* op, const nn::Module& module, ProcessGroup& group, const Stages& stages,
                 const ScheduleTable& table, const PipelineOptions& options) {
  nn::Hash hash;
  const std::string text = table.to_string();
  hash.update(std::as_bytes(std::span(text)));
  std::vector<std::string> texts = {
      fmt::format("schedule of {} micro-batches, {:016x}", table.micro_batches(), hash.digest()),
      fmt::format("weighting {}", static_cast<int>(options.weighting))};
  for (std::size_t k = 0; k < stages.chain.size(); ++k)
    texts.push_back(fmt::format("{} in stage {}", stages.chain[k].path, stages.stage_of(k)));
  texts.push_back(fmt::format("{} {}", version(), cpu_description()));
  check_same_model(op, module, group, texts);
}

}  // namespace

void check_stages(const char* op, nn::Module& module, int ranks, const PipelineOptions& options) {
  plan_stages(op, module, ranks, 0, options);
}

bool shares_parameters(const std::vector<ChainModule>& chain) {
  std::set<const nn::TensorSlot*> seen;
  for (const ChainModule& link : chain) {
    for (const nn::Parameter& each : link.module->parameters()) {
      if (!seen.insert(each.id()).second) return true;
    }
  }
  return false;
}

std::shared_ptr<const PipelineRunner> cut_into_stages(const char* op, nn::Module& module, const DeviceMesh& axis,
                                                      const PipelineOptions& options) {
  LOCKSTEP_CHECK(axis.defined() && axis.axes().size() == 1,
                 "{}: expected a mesh of one axis, for example mesh[\"pp\"]; the mesh is {}", op,
                 axis.defined() ? axis.to_string() : "undefined");
  const auto [table, stages] = plan_stages(op, module, axis.size(), axis.rank(), options);
  if (axis.group()) {
    check_ranks(op, module, *axis.group(), stages, table, options);
    share_values(op, module, *axis.group());
  }
  auto runner = std::make_shared<const PipelineRunner>(op, module, axis.group(), whole_group(axis), stages, table);
  nn::add_runner(module, runner);
  return runner;
}

PipelinePlan plan_of(const PipelineRunner& pipeline) {
  const Timeline timeline = simulate(pipeline.table(), {});
  PipelinePlan plan{.boundary_bytes = pipeline.sent_bytes(),
                    .outbox_bytes = pipeline.outbox_bytes(),
                    .bubble = timeline.idle,
                    .in_flight = {},
                    .deferred = {},
                    .stages = {}};
  for (const Timeline::Rank& rank : timeline.ranks) {
    plan.in_flight.push_back(rank.in_flight);
    plan.deferred.push_back(rank.deferred);
  }
  const Stages& stages = pipeline.stages();
  for (int s = 0; s < stages.count(); ++s)
    plan.stages.push_back(fmt::format("rank {}: {}", stages.rank_of(s), modules_of(stages, s)));
  return plan;
}

std::string PipelinePlan::to_string() const {
  std::string text;
  for (std::size_t s = 0; s < stages.size(); ++s) text += fmt::format("stage {:<3} {}\n", s, stages[s]);
  text += fmt::format("idle      {:.1f} % of a step, if F, I and W take equally long\n", 100 * bubble);
  text += fmt::format("in flight {} activations, by rank\n", fmt::join(in_flight, ", "));
  if (std::ranges::max(deferred) > 0)
    text += fmt::format("deferred  {} of them between I and W, by rank: their gradients are held, too\n",
                        fmt::join(deferred, ", "));
  text += fmt::format("sent      {} bytes by this rank in the last step\n", boundary_bytes);
  return text + fmt::format("outboxes  {} bytes of memory on this rank\n", outbox_bytes);
}

}  // namespace lockstep::parallel
