// One file for every pipeline, on ranks that are processes, also if one is killed while it saves.
#include <sys/time.h>

#include <csignal>
#include <random>

#include "tests/parallel/model_parallel/pipeline_checkpoint.h"

using namespace pipeline_training;

TEST_CASE("processes of pipelines write the file of gradient accumulation, and continue from it") {
  check_files<WithAdamW>("shm", {.dropout = 0.1, .norm = true},
                         {{.ranks = 2}, {.ranks = 2, .chunks = 3, .schedule = par::Schedule::kInterleaved}});
}

TEST_CASE("a rank that is killed while stages are saved leaves the old or the new file, complete") {
  constexpr int kRanks = 3;
  const auto train_and_save = [&](const Group& group, const std::string& path, int steps, std::int64_t delay_us) {
    ls::manual_seed(3);
    Model model({});
    par::Pipeline run(model, par::DeviceMesh(group, {{"pp", kRanks}}),
                      {.chain = {"embed", "blocks.*", "head"}, .micro_batches_per_rank = 4});
    WithAdamW optimizer(run);
    for (int step = 0; step < steps; ++step) train_step(run, optimizer, {}, step, 0, 1);
    group->barrier();
    const itimerval delay = {.it_interval = {}, .it_value = {.tv_sec = 0, .tv_usec = delay_us}};
    if (delay_us > 0) setitimer(ITIMER_REAL, &delay, nullptr);  // SIGALRM ends the process
    try {
      par::save_checkpoint(path, {.model = &run, .optimizer = &optimizer});
    } catch (const ls::CommError&) {  // the killed rank is lost
    }
  };
  const auto on_processes = [&](const std::string& path, int steps, int victim, std::int64_t delay_us) {
    const std::string name = fresh_group();
    const std::vector<ExitStatus> ends = run_processes(kRanks, [&](int rank) {
      set_master(name);
      const auto group = par::init_process_group(
          {.timeout = std::chrono::seconds(30), .world_size = kRanks, .rank = rank, .group_name = name});
      train_and_save(group, path, steps, rank == victim ? delay_us : 0);
    });
    for (std::size_t rank = 0; rank < ends.size(); ++rank) {
      INFO("rank ", rank, ": ", ends[rank].to_string());
      CHECK((ends[rank].ok() || (static_cast<int>(rank) == victim && ends[rank].signal == SIGALRM)));
    }
    return victim >= 0 && !ends[static_cast<std::size_t>(victim)].ok();
  };
  on_processes("old_stages", 1, -1, 0);
  on_processes("new_stages", 2, -1, 0);
  const std::string before = bytes_of("old_stages"), after = bytes_of("new_stages");
  std::mt19937 random(11);
  int kills = 0;
  for (int trial = 0; trial < 9; ++trial) {
    std::filesystem::copy_file("old_stages", "saved_stages", std::filesystem::copy_options::overwrite_existing);
    const bool was_killed =
        on_processes("saved_stages", 2, trial % kRanks, 1 + static_cast<std::int64_t>(random() % 4000));
    const std::string now = bytes_of("saved_stages");
    CHECK((now == after || (was_killed && now == before)));
    kills += was_killed;
  }
  CHECK(kills > 0);
}
