// The bytes that the stages of a pipeline send, by the formula.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>

#include "tests/support/groups.h"

namespace pipeline_bytes {

namespace par = ls::parallel;
namespace nn = ls::nn;
using par::Phase;

constexpr std::int64_t kBatch = 2, kTime = 12, kHidden = 48, kMicroBatches = 4;

struct Count {
  std::int64_t bytes = 0, transfers = 0;
  bool operator==(const Count&) const = default;
};

inline Count count_of(const par::TrafficStats& traffic, int from, int to, Phase phase) {
  for (const par::LinkTraffic& link : traffic.links()) {
    if (link.from == from && link.to == to && link.phase == phase) return {link.bytes, link.transfers};
  }
  return {};
}

// Each boundary carries the activations of M micro-batches in one direction, and in training their gradients in the
// other one. A rank counts what it sends.
inline void check_step(const par::TrafficStats& traffic, const par::ProcessGroup& group, bool trains) {
  constexpr Count kBoundary = {kMicroBatches * kBatch * kTime * kHidden * 4, kMicroBatches};
  for (int to = 0; to < group.size(); ++to) {
    const int from = group.rank();
    CHECK(count_of(traffic, group.global_rank(from), group.global_rank(to), Phase::kActivations) ==
          (to == from + 1 ? kBoundary : Count()));
    CHECK(count_of(traffic, group.global_rank(from), group.global_rank(to), Phase::kActivationGradients) ==
          (trains && to == from - 1 ? kBoundary : Count()));
  }
}

// On ranks 1 to 3 of four, in the order 3, 2, 1, so that numbers in the axis are not those of the group.
inline void check_rank(const Group& world, bool shares_memory) {
  const Group group = world->split(world->rank() == 0 ? -1 : 0, -world->rank());
  if (!group) return world->barrier();  // holds the store until the others have ended
  nn::Sequential model(nn::Linear(8, kHidden), nn::GELU(), nn::Linear(kHidden, kHidden), nn::Tanh(),
                       nn::Linear(kHidden, 3), nn::Tanh());
  const par::DeviceMesh mesh(group, {{"pp", 3}});
  par::Pipeline run(model, mesh["pp"], {.micro_batches_per_rank = kMicroBatches});
  CHECK(run.plan().outbox_bytes == 0);
  const ls::Tensor x = ls::ones({kMicroBatches * kBatch, kTime, 8}), y = ls::ones({kMicroBatches * kBatch, kTime, 3});
  const auto loss = [&](const ls::Tensor& in, const ls::Tensor& target) { return nn::mse_loss(model(in), target); };
  par::TrafficStats& traffic = mesh["pp"].group()->traffic();
  for (int step = 0; step < 3; ++step) {
    traffic.clear();
    run.backward(x, y, loss);
    check_step(traffic, *mesh["pp"].group(), /*trains=*/true);
    // Two messages of each direction: one may wait while the receiver copies the other one.
    CHECK(run.plan().outbox_bytes == (shares_memory ? 4 * kBatch * kTime * kHidden * 4 : 0));
    CHECK(run.plan().boundary_bytes == traffic.bytes(Phase::kActivations) + traffic.bytes(Phase::kActivationGradients));
    traffic.clear();
    run.evaluate(x, y, loss);
    check_step(traffic, *mesh["pp"].group(), /*trains=*/false);
  }
  world->barrier();
}

inline void check_bytes(const std::string& backend) {
  with_group(backend, 4, [&](const Group& world) { check_rank(world, backend == "shm" || backend == "local"); });
}

}  // namespace pipeline_bytes
