#include "lockstep/parallel/step/shared_runner_internal.h"

#include <algorithm>

#include "lockstep/base/check_internal.h"

namespace lockstep::parallel {

std::vector<std::shared_ptr<const SharedRunner>> shared_runners(nn::Module& module) {
  std::vector<std::shared_ptr<const SharedRunner>> runners;
  if (!nn::ModuleRunner::exists()) return runners;
  for (const nn::Module* each : module.modules()) {
    if (auto runner = std::dynamic_pointer_cast<const SharedRunner>(nn::runner_of(*each)))
      runners.push_back(std::move(runner));
  }
  return runners;
}

std::vector<ProcessGroup*> runner_groups(nn::Module& module) {
  std::vector<ProcessGroup*> groups;
  for (const auto& runner : shared_runners(module)) {
    if (std::ranges::find(groups, runner->group.get()) == groups.end()) groups.push_back(runner->group.get());
  }
  return groups;
}

void require_runner_ranks(const char* mode, nn::Module& module, const ProcessGroup* group) {
  const auto position = [&](int rank) {
    for (int r = 0; group && r < group->size(); ++r) {
      if (group->global_rank(r) == rank) return r;
    }
    return -1;
  };
  for (const ProcessGroup* blocks : runner_groups(module)) {
    std::vector<int> at;
    for (int r = 0; r < blocks->size(); ++r) at.push_back(position(blocks->global_rank(r)));
    LOCKSTEP_CHECK(
        std::ranges::find(at, -1) == at.end(),
        "{}: the model is context-parallel over {} ranks, and each has a part of the gradients; train it with "
        "DistributedDataParallel or ShardedDataParallel over a group with all of them: "
        "mesh.flatten({{\"cp\", \"dp\"}}).group(), or mesh[\"cp\"].group() if there is no other axis",
        mode, blocks->size());
    const int distance = group->size() / blocks->size();
    for (int r = 0; r < blocks->size(); ++r)
      LOCKSTEP_CHECK(
          at[static_cast<std::size_t>(r)] == at[0] + r * distance && at[0] < distance,
          "{}: the ranks that share a sequence have the wrong places in the group, and the bits would depend "
          "on the mesh; name the axis cp first: mesh.flatten({{\"cp\", \"dp\"}}).group()",
          mode);
  }
}

}  // namespace lockstep::parallel
