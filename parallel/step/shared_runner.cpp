#include "lockstep/parallel/step/shared_runner_internal.h"

#include <algorithm>

#include "lockstep/base/check_internal.h"

namespace lockstep::parallel {

std::vector<std::shared_ptr<const SharedRunner>> shared_runners(nn::Module& module) {
  std::vector<std::shared_ptr<const SharedRunner>> runners;
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
  const auto has = [&](int rank) {
    for (int r = 0; group && r < group->size(); ++r) {
      if (group->global_rank(r) == rank) return true;
    }
    return false;
  };
  for (const ProcessGroup* blocks : runner_groups(module)) {
    for (int r = 0; r < blocks->size(); ++r)
      LOCKSTEP_CHECK(has(blocks->global_rank(r)),
                     "{}: the model is context-parallel over {} ranks, and each has a part of the gradients; train it "
                     "with DistributedDataParallel or ShardedDataParallel over a group with all of them: "
                     "mesh.flatten({{\"cp\", \"dp\"}}).group()",
                     mode, blocks->size());
  }
}

}  // namespace lockstep::parallel
