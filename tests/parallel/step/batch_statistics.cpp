// Batch normalisation where ranks are processes.
#include <signal.h>

#include "tests/parallel/step/batch_statistics.h"

using namespace batch_statistics;

TEST_CASE("over shm with all_micro_batches DDP and every stage give the bits of accumulation") {
  check_all_micro_batches("shm", 0.1, 4, 2);
  check_all_micro_batches("shm", std::nullopt, 4, 4);
}

TEST_CASE("over shm SyncBatchNorm has the bits of DataParallel") {
  for (const int ranks : {2, 3, 4}) check_sync("shm", ranks);
}

TEST_CASE("a rank that is killed in SyncBatchNorm's forward or backward is named by the others") {
  for (const bool in_backward : {false, true}) {
    const std::string name = fresh_group();
    const std::vector<ExitStatus> ended = run_processes(3, [&](int rank) {
      set_master(name);
      const Group group = par::init_process_group(
          {.timeout = std::chrono::seconds(30), .world_size = 3, .rank = rank, .group_name = name});
      SyncNet net;
      par::DistributedDataParallel run(net.convert(group), group);
      const Batch own = batch(4, rank);
      const auto loss_fn = [&](const ls::Tensor& x, const ls::Tensor&) {
        if (rank == 1 && !in_backward) kill(getpid(), SIGKILL);
        const ls::Tensor y = net(x);
        if (rank == 1)
          y.register_hook([](const ls::Tensor&) -> ls::Tensor {
            kill(getpid(), SIGKILL);
            return {};
          });
        return ls::mean(y);
      };
      CHECK(contains(error_of<ls::CommError>([&] { run.backward(own.x, own.y, loss_fn); }), "rank 1"));
    });
    CHECK(ended[0].ok());
    CHECK(ended[1].signal == SIGKILL);
    CHECK(ended[2].ok());
  }
}
