// Files that several ranks write, as processes, also when one of them is killed.
#include <fcntl.h>
#include <sys/time.h>
#include <unistd.h>

#include <csignal>

#include "tests/parallel/checkpoint/group_file.h"

namespace {

// The call before which this process ends; negative: none.
int last_call = -1, calls = 0;

void pass() {
  if (calls++ == last_call) kill(getpid(), SIGKILL);
}

ls::FileSystemCalls ending() {
  ls::FileSystemCalls table = ls::FileSystemCalls::real();
  table.open = [](const char* path, int flags, mode_t mode) {
    return pass(), ls::FileSystemCalls::real().open(path, flags, mode);
  };
  table.pwrite = [](int fd, const void* data, std::size_t size, off_t offset) {
    return pass(), ::pwrite(fd, data, size, offset);
  };
  table.fallocate = [](int fd, int mode, off_t offset, off_t size) {
    return pass(), ::fallocate(fd, mode, offset, size);
  };
  table.fsync = [](int fd) { return pass(), ::fsync(fd); };
  table.rename = [](const char* from, const char* to) { return pass(), ::rename(from, to); };
  table.close = [](int fd) { return pass(), ::close(fd); };
  return table;
}

struct Kill {
  int victim = 0;
  int call = -1;               // the victim ends before this call; negative: ...
  std::int64_t delay_us = -1;  // ... so long after the start of the save
};

constexpr const char* kPath = "killed.safetensors";

// Saves `dict` on 3 ranks, of which one is killed. Returns whether it was killed. The survivors fail with a CommError, or
// finish.
bool save_and_kill(const ls::StateDict& dict, const Kill& plan) {
  const std::string name = fresh_group();
  const std::vector<ExitStatus> ends = run_processes(3, [&](int rank) {
    set_master(name);
    const auto group = par::init_process_group(
        {.timeout = std::chrono::seconds(30), .world_size = 3, .rank = rank, .group_name = name});
    std::vector<Piece> pieces = cut(dict, rank, 3);
    group->barrier();
    if (rank == plan.victim) {
      last_call = plan.call;
      calls = 0;
      if (plan.delay_us >= 0) {
        const itimerval delay = {.it_interval = {}, .it_value = {.tv_sec = 0, .tv_usec = plan.delay_us + 1}};
        setitimer(ITIMER_REAL, &delay, nullptr);  // SIGALRM ends the process
      }
    }
    try {
      par::save_pieces(std::move(pieces), {}, kPath, group.get(), ending());
    } catch (const ls::CommError& error) {
      CHECK_MESSAGE(contains(error.what(), "rank " + std::to_string(plan.victim)), error.what());
    }
    last_call = -1;
    const itimerval none = {};
    setitimer(ITIMER_REAL, &none, nullptr);
  });
  for (int rank = 0; rank < 3; ++rank) {
    const ExitStatus& end = ends[static_cast<std::size_t>(rank)];
    INFO("rank ", rank, ": ", end.to_string());
    CHECK((end.ok() || (rank == plan.victim && (end.signal == SIGKILL || end.signal == SIGALRM))));
  }
  return !ends[static_cast<std::size_t>(plan.victim)].ok();
}

}  // namespace

TEST_CASE("1 to 4 processes write the bytes that one process writes") { check_group_files("shm"); }

TEST_CASE("2 and 4 processes with slices of matrices write the bytes that one process writes, and read their slices") {
  check_group_files_of_slices("shm");
}

TEST_CASE("a rank that is killed before any system call, or at any moment, leaves the old or the new file, complete") {
  const ls::StateDict old = {{"w", ls::zeros({30})}};
  ls::StateDict fresh = whole_tensors();
  fresh.insert("large", numbers({1 << 20}));
  ls::save(fresh, "new.safetensors");
  ls::save(old, kPath);
  const std::string before = content_of_file(kPath), after = content_of_file("new.safetensors");
  int kills = 0, replaced = 0;
  const auto trial = [&](const Kill& plan) {
    ls::save(old, kPath);
    CHECK(files_named(kPath) == 1);  // this save has removed the file of a killed rank
    const bool was_killed = save_and_kill(fresh, plan);
    const std::string now = content_of_file(kPath);
    const bool is_new = now == after;
    CHECK((is_new || (was_killed && now == before)));
    kills += was_killed;
    replaced += was_killed && is_new;
    return was_killed;
  };
  for (const int victim : {0, 1, 2}) {
    for (int call = 0; trial({.victim = victim, .call = call}); ++call) continue;
  }
  CHECK(kills >= 14);
  CHECK(replaced >= 1);  // rank 0, killed after the rename
  std::mt19937 random(7);
  while (kills < 100 / LOCKSTEP_SLOWDOWN)
    trial({.victim = static_cast<int>(random() % 3), .delay_us = static_cast<std::int64_t>(random() % 20'000)});
}
