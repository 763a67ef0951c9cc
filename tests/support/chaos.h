// Training runs in which a fault happens, and checks of the error and the parameters of every survivor.
#pragma once

#include <signal.h>

#include <functional>
#include <vector>

#include "tests/support/groups.h"

struct TwoLayers : ls::nn::Module {
  ls::nn::Linear& fc1 = add<ls::nn::Linear>("fc1", 4, 64);
  ls::nn::Linear& fc2 = add<ls::nn::Linear>("fc2", 64, 2);
  // The initial values are set here because ranks that are threads share the random streams.
  TwoLayers() {
    const ls::NoGradGuard no_grad;
    std::uint32_t salt = 0;
    for (const ls::nn::Parameter& p : parameters()) p->copy_(numbers(p->shape(), {}, ++salt));
  }
  ls::Tensor forward(const ls::Tensor& x) const override { return fc2(ls::relu(fc1(x))); }
};

// Runs the ranks of a group, some of which are expected to die, and returns how each ended.
inline std::vector<ExitStatus> ranks_of(int size, const std::function<void(const Group& group)>& fn,
                                        std::chrono::milliseconds timeout = std::chrono::seconds(20),
                                        const std::string& backend = "shm") {
  const std::string group = fresh_group();
  return run_processes(size, [&](int rank) {
    set_master(group);
    fn(ls::parallel::init_process_group(
        {.backend = backend, .timeout = timeout, .world_size = size, .rank = rank, .group_name = group}));
  });
}

// The mean of n equal gradients has the gradients' bits only where 1 / n is a power of two.
inline bool is_power_of_two(int n) { return (n & (n - 1)) == 0; }

// Rank 2 of three is stopped; rank 1 waits for a message from it, and rank 0 for rank 1. Both errors must name rank 2
// alone.
inline void check_stopped_rank(const char* backend) {
  const auto ended = ranks_of(
      3,
      [&](const Group& group) {
        const ls::Tensor pids = ls::zeros({3}, {.dtype = ls::kInt64}), t = ls::zeros({100'000});
        group->all_gather(pids, ls::full({1}, getpid(), {.dtype = ls::kInt64}))->wait();
        if (group->rank() == 2) raise(SIGSTOP);
        const std::string error =
            error_of<ls::CommTimeout>([&] { (group->rank() == 0 ? group->all_reduce(t) : group->recv(t, 2))->wait(); });
        const std::string blame = error.substr(error.find("): "));
        CHECK_MESSAGE(contains(blame, "rank 2"), error);
        for (const char* innocent : {"rank 0", "rank 1"}) CHECK_MESSAGE(!contains(blame, innocent), error);
        kill(static_cast<pid_t>(pids[2].item<std::int64_t>()), SIGKILL);
      },
      std::chrono::milliseconds(2000), backend);
  for (const int survivor : {0, 1})
    CHECK_MESSAGE(ended[static_cast<std::size_t>(survivor)].ok(),
                  ended[static_cast<std::size_t>(survivor)].to_string());
  CHECK(ended[2].signal == SIGKILL);
}

// Rank 1 of four is stopped, and the others wait in different groups made from one: rank 0 for a message from rank 1,
// rank 2 for rank 0 in a group without rank 1, rank 3 for all in a duplicate. All errors must name rank 1 alone.
inline void check_stopped_rank_of_other_group(const char* backend) {
  constexpr int kRanks = 4, kVictim = 1;
  const NumberPipe reports;
  const auto ended = ranks_of(
      kRanks,
      [&](const Group& all) {
        const int rank = all->rank();
        const Group row = all->split(rank / 2), column = all->split(rank % 2), copy = all->duplicate();
        const ls::Tensor pids = ls::zeros({kRanks}, {.dtype = ls::kInt64}), t = ls::zeros({100'000});
        all->all_gather(pids, ls::full({1}, getpid(), {.dtype = ls::kInt64}))->wait();
        if (rank == kVictim) raise(SIGSTOP);
        const auto check = [&](const std::function<std::shared_ptr<ls::parallel::Work>()>& start) {
          const std::string error = error_of<ls::CommTimeout>([&] { start()->wait(); });
          const std::size_t blamed = error.find("): ");
          REQUIRE_MESSAGE(blamed != std::string::npos, error);
          const std::string blame = error.substr(blamed);
          CHECK_MESSAGE(contains(blame, "rank 1 "), error);
          for (const char* innocent : {"rank 0", "rank 2", "rank 3"}) CHECK_MESSAGE(!contains(blame, innocent), error);
        };
        check([&] { return rank == 0 ? row->recv(t, kVictim) : (rank == 2 ? column : copy)->all_reduce(t); });
        check([&] { return all->all_reduce(t); });  // a rank that has its first error still waits for rank 1
        reports.send(rank);
        if (rank != 0) return;
        for (int survivor = 1; survivor < kRanks; ++survivor) static_cast<void>(reports.receive());
        kill(static_cast<pid_t>(pids[kVictim].item<std::int64_t>()), SIGKILL);
      },
      std::chrono::milliseconds(2000), backend);
  for (int rank = 0; rank < kRanks; ++rank) {
    const ExitStatus& status = ended[static_cast<std::size_t>(rank)];
    CAPTURE(rank);
    CHECK_MESSAGE((rank == kVictim ? status.signal == SIGKILL && !status.timed_out : status.ok()), status.to_string());
  }
}

// Trains until `victim` calls `fault` at its step `moment`. The others must get a CommError that names the victim, and
// their parameters must equal those of a run without the fault after the same number of steps.
inline void train_until(const Group& group, int victim, int moment, const std::function<void()>& fault) {
  TwoLayers model, undisturbed;
  ls::parallel::DistributedDataParallel ddp(model, group, {.bucket_cap_mb = 0.0005});
  ls::optim::SGD optimizer(model.parameters(), {.lr = 0.1});
  ls::nn::MSELoss criterion;
  const ls::Tensor x = numbers({8, 4}, {}, 8), y = numbers({8, 2}, {}, 9);
  int steps = 0;
  const std::string error = error_of<ls::CommError>([&] {
    for (; steps < 1000; ++steps) {
      if (group->rank() == victim && steps == moment) fault();
      optimizer.zero_grad();
      criterion(ddp(x), y).backward();
      optimizer.step();
    }
  });
  CHECK_MESSAGE(contains(error, "rank " + std::to_string(victim)), error);
  CHECK_MESSAGE(contains(error, "bucket"), error);
  CHECK(steps == moment);

  // All ranks had the same samples, so the mean over the ranks equals the gradient of one rank alone.
  ls::optim::SGD alone(undisturbed.parameters(), {.lr = 0.1});
  for (int i = 0; i < steps; ++i) {
    alone.zero_grad();
    criterion(undisturbed(x), y).backward();
    alone.step();
  }
  const auto have = model.parameters(), want = undisturbed.parameters();
  for (std::size_t i = 0; i < have.size() && is_power_of_two(group->size()); ++i) {
    const bool same = same_bits(have[i]->detach(), want[i]->detach());
    CHECK(same);
  }
}

// One of `size` processes is killed at its step `moment`; the others must pass the checks of train_until and exit
// normally.
inline void check_killed_rank(int size, int victim, int moment, const char* backend) {
  const auto ended = ranks_of(
      size, [&](const Group& group) { train_until(group, victim, moment, [] { raise(SIGKILL); }); },
      std::chrono::seconds(20), backend);
  for (int r = 0; r < size; ++r) {
    const ExitStatus& status = ended[static_cast<std::size_t>(r)];
    if (r == victim)
      CHECK(status.signal == SIGKILL);
    else
      CHECK_MESSAGE(status.ok(), "rank " << r << ": " << status.to_string());
  }
}
