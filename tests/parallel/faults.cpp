// What the others see when a rank dies, stops or leaves: ranks are processes that share a shm group.
#include <signal.h>
#include <unistd.h>

#include <filesystem>

#include "tests/parallel/collectives.h"
#include "tests/support/chaos.h"

TEST_CASE("a rank that is killed is named by the others, whose parameters are untouched by the step that failed") {
  for (const int size : {2, 3, 5}) {
    for (const int moment : {0, 1, 17}) {
      CAPTURE(size);
      CAPTURE(moment);
      const int victim = moment % size;
      const auto ended =
          ranks_of(size, [&](const Group& group) { train_until(group, victim, moment, [] { raise(SIGKILL); }); });
      for (int r = 0; r < size; ++r) {
        const ExitStatus& status = ended[static_cast<std::size_t>(r)];
        if (r == victim)
          CHECK(status.signal == SIGKILL);
        else
          CHECK_MESSAGE(status.ok(), "rank " << r << ": " << status.to_string());
      }
    }
  }
}

TEST_CASE("a rank that throws or leaves is named by the others") {
  const auto ended = ranks_of(3, [&](const Group& group) {
    train_until(group, 1, 4, [] { throw ls::InvalidArgument("a bug in the user's code"); });
  });
  CHECK(ended[0].ok());
  CHECK(contains(ended[1].error, "a bug in the user's code"));
  CHECK(ended[2].ok());
}

TEST_CASE("a rank that is stopped runs into the timeout of the others, who name it") {
  const auto ended = ranks_of(
      2,
      [&](const Group& group) {
        const ls::Tensor pids = ls::zeros({2}, {.dtype = ls::kInt64});
        group->all_gather(pids, ls::full({1}, getpid(), {.dtype = ls::kInt64}))->wait();
        if (group->rank() == 1) raise(SIGSTOP);
        const std::string error = error_of<ls::CommTimeout>([&] { group->barrier(); });
        CHECK_MESSAGE(contains(error, "rank 1 has not arrived"), error);
        kill(static_cast<pid_t>(pids[1].item<std::int64_t>()), SIGKILL);
      },
      std::chrono::milliseconds(2000));
  CHECK_MESSAGE(ended[0].ok(), ended[0].to_string());
  CHECK(ended[1].signal == SIGKILL);
}

TEST_CASE("after a failure the group can be made again in the processes that are left") {
  const std::string again = std::to_string(10000 + (getpid() * 16 + 14) % 50000);
  const auto ended = ranks_of(3, [&](const Group& first) {
    Group group = first;
    if (group->rank() == 0) raise(SIGKILL);
    const int rank = group->rank() - 1;
    const std::string error = error_of<ls::CommError>([&] { group->all_reduce(ls::zeros({10}))->wait(); });
    CHECK_MESSAGE(contains(error, "rank 0 is gone"), error);
    setenv("MASTER_PORT", again.c_str(), 1);
    group = ls::parallel::init_process_group({.world_size = 2, .rank = rank});
    const ls::Tensor t = ls::full({3}, rank + 1);
    group->all_reduce(t)->wait();
    CHECK(t.max().item<float>() == 3);
  });
  CHECK(ended[0].signal == SIGKILL);
  CHECK_MESSAGE(ended[1].ok(), ended[1].to_string());
  CHECK_MESSAGE(ended[2].ok(), ended[2].to_string());
}

TEST_CASE("nothing is left of a group: no descriptor, no mapping") {
  with_group("shm", 2, [](const Group& outer) {
    const auto count = [](const char* folder) {
      std::ptrdiff_t entries = 0;
      for ([[maybe_unused]] const auto& entry : std::filesystem::directory_iterator(folder)) ++entries;
      return entries;
    };
    const auto use = [&] {
      const Group group = outer->split(0);
      const ls::Tensor t = group->empty({1000});
      group->all_reduce(t)->wait();
      group->all_reduce(ls::zeros({50000}))->wait();
    };
    use();
    const auto before = count("/proc/self/fd");
    for (int i = 0; i < 20; ++i) use();
    CHECK(count("/proc/self/fd") == before);
  });
}
