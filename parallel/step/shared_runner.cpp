#include "lockstep/parallel/step/shared_runner_internal.h"

#include <algorithm>

#include <fmt/ranges.h>

#include "lockstep/base/check_internal.h"
#include "lockstep/parallel/step/stage_runner_internal.h"

namespace lockstep::parallel {

std::vector<std::shared_ptr<const SharedRunner>> shared_runners(nn::Module& module) {
  std::vector<std::shared_ptr<const SharedRunner>> found;
  if (!nn::ModuleRunner::exists()) return found;
  for (const nn::Module* each : module.modules()) {
    for (const auto& runner : nn::runners_of(*each)) {
      if (auto shared = std::dynamic_pointer_cast<const SharedRunner>(runner)) found.push_back(std::move(shared));
    }
  }
  return found;
}

namespace {

std::vector<ProcessGroup*> groups_of(nn::Module& module, const SharedRunner::Part* part) {
  std::vector<ProcessGroup*> groups;
  for (const auto& runner : shared_runners(module)) {
    if (!runner->group || (part && runner->part != *part)) continue;
    if (std::ranges::find(groups, runner->group.get()) == groups.end()) groups.push_back(runner->group.get());
  }
  return groups;
}

// The rank in `group` that has this number in the group of init_process_group; -1: none.
int position_in(const ProcessGroup* group, int global_rank) {
  for (int r = 0; group && r < group->size(); ++r) {
    if (group->global_rank(r) == global_rank) return r;
  }
  return -1;
}

void require_sequence_ranks(const char* mode, const ProcessGroup& blocks, const ProcessGroup* group) {
  std::vector<int> at;
  for (int r = 0; r < blocks.size(); ++r) at.push_back(position_in(group, blocks.global_rank(r)));
  LOCKSTEP_CHECK(std::ranges::find(at, -1) == at.end(),
                 "{}: the model is context-parallel over {} ranks, and each has a part of the gradients; train it with "
                 "DistributedDataParallel or ShardedDataParallel over a group with all of them: "
                 "mesh.flatten({{\"cp\", \"dp\"}}).group(), or mesh[\"cp\"].group() if there is no other axis",
                 mode, blocks.size());
  const int distance = group->size() / blocks.size();
  for (int r = 0; r < blocks.size(); ++r)
    LOCKSTEP_CHECK(at[static_cast<std::size_t>(r)] == at[0] + r * distance && at[0] < distance,
                   "{}: the ranks that share a sequence have the wrong places in the group, and the bits would depend "
                   "on the mesh; name the axis cp first: mesh.flatten({{\"cp\", \"dp\"}}).group()",
                   mode);
}

void require_model_ranks(const char* mode, const char* how, const char* parts, const ProcessGroup& ranks,
                         const ProcessGroup* group) {
  for (int r = 0; r < ranks.size(); ++r)
    LOCKSTEP_CHECK(
        r == ranks.rank() || position_in(group, ranks.global_rank(r)) < 0,
        "{}: the model is {} over {} ranks, which have different {} of its parameters, and several of them are "
        "in the mode's group, which would mix these; pass the group of another axis: mesh[\"dp\"].group()",
        mode, how, ranks.size(), parts);
}

std::vector<int> global_ranks(const ProcessGroup& group) {
  std::vector<int> ranks;
  for (int r = 0; r < group.size(); ++r) ranks.push_back(group.global_rank(r));
  return ranks;
}

// The norm, checkpoints and `gathered` know one group that has all slices.
void require_one_model_group(const char* mode, const std::vector<ProcessGroup*>& groups) {
  for (const ProcessGroup* each : groups) {
    const std::vector<int> first = global_ranks(*groups[0]), own = global_ranks(*each);
    LOCKSTEP_CHECK(
        own == first,
        "{}: parallelize has cut one part of the model over the ranks {}, and another one over the ranks {}; "
        "pass the same axis to all calls of parallelize, or several axes as one: "
        "mesh.flatten({{\"dp\", \"tp\"}})",
        mode, fmt::join(first, ", "), fmt::join(own, ", "));
  }
}

}  // namespace

std::shared_ptr<const SharedRunner> model_runner(nn::Module& module) {
  std::shared_ptr<const SharedRunner> found;
  for (const auto& runner : shared_runners(module)) {
    if (runner->part == SharedRunner::Part::kModel && runner->group && !(found && found->mesh)) found = runner;
  }
  return found;
}

std::vector<ProcessGroup*> runner_groups(nn::Module& module) { return groups_of(module, nullptr); }
std::vector<ProcessGroup*> runner_groups(nn::Module& module, SharedRunner::Part part) {
  return groups_of(module, &part);
}

bool divides_model(nn::Module& module) {
  return !runner_groups(module, SharedRunner::Part::kModel).empty() ||
         !runner_groups(module, SharedRunner::Part::kStages).empty();
}

std::shared_ptr<const StageRunner> stage_runner(const nn::Module& module) {
  if (!nn::ModuleRunner::exists()) return nullptr;
  for (const auto& runner : nn::runners_of(module)) {
    if (auto stages = std::dynamic_pointer_cast<const StageRunner>(runner)) return stages;
  }
  return nullptr;
}

namespace {

// `own`, unless it is null, and the counters of the runners' groups, each once.
std::vector<TrafficStats*> all_counters(nn::Module& module, TrafficStats* own) {
  std::vector<TrafficStats*> counters;
  if (own) counters.push_back(own);
  for (ProcessGroup* group : runner_groups(module)) {
    if (std::ranges::find(counters, &group->traffic()) == counters.end()) counters.push_back(&group->traffic());
  }
  return counters;
}

}  // namespace

const TrafficStats& RunnerTraffic::with(nn::Module& module, TrafficStats* own) {
  const std::vector<TrafficStats*> counters = all_counters(module, own);
  if (own && counters.size() == 1) return *own;
  sum_ = counters.empty() ? TrafficStats() : *counters[0];
  for (std::size_t i = 1; i < counters.size(); ++i) sum_.add(*counters[i]);
  return sum_;
}

void RunnerTraffic::open_step(nn::Module& module, TrafficStats* own) {
  for (TrafficStats* const each : all_counters(module, own)) each->open_step();
}

void RunnerTraffic::close_step(nn::Module& module, TrafficStats* own) {
  for (TrafficStats* const each : all_counters(module, own)) each->close_step();
}

namespace {

// Each runner has the ranks of `group`.
void require_batch_ranks(const char* mode, nn::Module& module, const ProcessGroup* group) {
  for (const auto& runner : shared_runners(module)) {
    if (runner->part != SharedRunner::Part::kBatch) continue;
    const std::vector<int> own = runner->group ? global_ranks(*runner->group) : std::vector<int>(),
                           all = group && group->size() > 1 ? global_ranks(*group) : std::vector<int>();
    LOCKSTEP_CHECK(
        own == all,
        "{}: the group of a SyncBatchNorm has the ranks [{}], and the mode's [{}] (empty: this process alone); "
        "pass the mode's group to SyncBatchNorm, or in one process null",
        mode, fmt::join(own, ", "), fmt::join(all, ", "));
  }
}

}  // namespace

void require_runner_ranks(const char* mode, nn::Module& module, const ProcessGroup* group) {
  for (const ProcessGroup* blocks : runner_groups(module, SharedRunner::Part::kSequence))
    require_sequence_ranks(mode, *blocks, group);
  require_batch_ranks(mode, module, group);
  const std::vector<ProcessGroup*> of_slices = runner_groups(module, SharedRunner::Part::kModel);
  require_one_model_group(mode, of_slices);
  for (const ProcessGroup* slices : of_slices) require_model_ranks(mode, "tensor-parallel", "slices", *slices, group);
  for (const ProcessGroup* stages : runner_groups(module, SharedRunner::Part::kStages))
    require_model_ranks(mode, "in pipeline stages", "stages", *stages, group);
}

}  // namespace lockstep::parallel
