// One file for every mesh: checkpoints of models that are cut, on ranks that are processes.
#include <sys/time.h>

#include <csignal>
#include <random>

#include "tests/parallel/model_parallel/tensor_checkpoint.h"

using namespace tensor_training;

TEST_CASE("processes of every mesh write the same file, and continue from it with the same bits") {
  check_files<TiedModel>(4, {.fused = true, .dropout = 0.2},
                         {{.tp = 1},
                          {.tp = 2},
                          {.tp = 4},
                          {.tp = 2, .dp = 2},
                          {.tp = 2, .dp = 2, .stage = 2},
                          {.tp = 4, .dp = 2, .stage = 3}},
                         "shm");
}

TEST_CASE("a rank that is killed while a model that is cut is saved leaves the old or the new file, complete") {
  const Layout layout{.tp = 2, .dp = 2, .stage = 3};
  const auto train_and_save = [&](const Group& group, const std::string& path, int steps, std::int64_t delay_us) {
    on_mesh<Model>(group, 4, layout, {}, [&](auto& run, Model&, int d) {
      Outcome outcome;
      ls::optim::AdamW optimizer(run.parameters(), {.lr = 1e-2});
      train_steps(run, optimizer, layout, {}, d, 0, steps, outcome);
      group->barrier();
      const itimerval delay = {.it_interval = {}, .it_value = {.tv_sec = 0, .tv_usec = delay_us}};
      if (delay_us > 0) setitimer(ITIMER_REAL, &delay, nullptr);  // SIGALRM ends the process
      try {
        par::save_checkpoint(path, {.model = &run, .optimizer = &optimizer});
      } catch (const ls::CommError&) {  // the killed rank is lost
      }
    });
  };
  const auto on_processes = [&](const std::string& path, int steps, int victim, std::int64_t delay_us) {
    const std::string name = fresh_group();
    const std::vector<ExitStatus> ends = run_processes(layout.ranks(), [&](int rank) {
      set_master(name);
      const auto group = par::init_process_group(
          {.timeout = std::chrono::seconds(30), .world_size = layout.ranks(), .rank = rank, .group_name = name});
      train_and_save(group, path, steps, rank == victim ? delay_us : 0);
    });
    for (std::size_t rank = 0; rank < ends.size(); ++rank) {
      INFO("rank ", rank, ": ", ends[rank].to_string());
      CHECK((ends[rank].ok() || (static_cast<int>(rank) == victim && ends[rank].signal == SIGALRM)));
    }
    return victim >= 0 && !ends[static_cast<std::size_t>(victim)].ok();
  };
  on_processes("old", 1, -1, 0);
  on_processes("new", 2, -1, 0);
  const std::string before = content_of_file("old"), after = content_of_file("new");
  std::mt19937 random(11);
  int kills = 0;
  for (int trial = 0; trial < 12; ++trial) {
    std::filesystem::copy_file("old", "saved", std::filesystem::copy_options::overwrite_existing);
    const bool was_killed =
        on_processes("saved", 2, trial % layout.ranks(), 1 + static_cast<std::int64_t>(random() % 4000));
    const std::string now = content_of_file("saved");
    CHECK((now == after || (was_killed && now == before)));
    kills += was_killed;
  }
  CHECK(kills > 0);
}
