// join and communication hooks with processes as ranks.
#include "tests/parallel/step/join.h"

#include "tests/parallel/replicated/comm_hooks.h"
#include "tests/support/chaos.h"

using ls::parallel::DistributedDataParallel;
using ls::parallel::Weighting;

TEST_CASE("join and hooks: ranks are processes, with uneven batches, casts and PowerSGD") {
  for (const std::vector<int>& batches : {std::vector<int>{2, 5}, {0, 3, 1}, {3, 0, 2, 4}}) {
    CAPTURE(batches.size());
    with_group("shm", static_cast<int>(batches.size()), [&](const Group& group) {
      check_uneven(group, {.batches = batches});
      check_uneven(group, {.batches = batches, .by_initial = false, .verb = false});
      check_uneven(group, {.batches = batches, .ddp = {.weighting = Weighting::kSamples}});
      check_uneven(group, {.batches = batches, .hook = ls::parallel::allreduce_hook});
      check_casts(group);
      check_power_sgd(group, 2, ls::kFloat32);
    });
  }
}

TEST_CASE("join: the joined ranks name a rank that is killed") {
  const std::vector<ExitStatus> ends = ranks_of(3, [](const Group& group) {
    const int rank = group->rank();
    Counting model;
    DistributedDataParallel ddp(model, group);
    const std::string error = error_of<ls::CommError>([&] {
      ddp.join([&] {
        const int batches = rank == 1 ? 10 : 0;  // rank 1 dies before the fourth batch
        for (int k = 0; k < batches; ++k) {
          const UnevenBatch batch(rank, k);
          if (k == 3) raise(SIGKILL);
          ddp.backward(batch.x, batch.y,
                       [&](const ls::Tensor& x, const ls::Tensor& y) { return ls::nn::MSELoss()(model(x), y); });
        }
      });
    });
    CHECK_MESSAGE((contains(error, "rank 1") && contains(error, "of step 4")), error);
    CHECK(ddp.stats().steps == 3);
  });
  CHECK(ends[1].signal == SIGKILL);
  for (const int r : {0, 2})
    CHECK_MESSAGE(ends[static_cast<std::size_t>(r)].ok(), ends[static_cast<std::size_t>(r)].to_string());
}
