// How soon the other ranks get an error after one of them was killed: from just before its SIGKILL to the moment at
// which the last survivor has its CommError; one job per kill. Three ranks run sums, small and large ones alternately;
// in the rows "busy" two ranks run sums of 12 MiB while two other processes use the cores. The rows "ended" are the part
// of it until the killed process has ended, which is when the kernel tells the others: the scheduler's part.
//   bench_survivors [--kills 100] [--rows shm|gloo|busy]      default: all
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/syscall.h>

#include <cstring>
#include <functional>

#include "support/arguments.h"
#include "support/ranks.h"
#include "support/timing.h"

namespace ls = lockstep;

namespace {

constexpr int kMostRanks = 3;

struct Rows {
  std::string name, backend;
  int ranks;
  std::vector<std::int64_t> counts;  // elements of a sum, in turn
  int busy_processes;
};

struct Moments {
  double killed = 0;                // steady clock, seconds
  double heard[kMostRanks] = {};    // time of a rank's error
  bool was_named[kMostRanks] = {};  // true if the error named the victim
};

void be_rank(const Rows& rows, int rank, int victim, int moment, std::int64_t count, Moments& moments) {
  const bench::Group group =
      ls::parallel::init_process_group({.backend = rows.backend, .world_size = rows.ranks, .rank = rank});
  const ls::Tensor t = ls::ones({count});
  try {
    for (int step = 0; step < 1'000'000; ++step) {
      const auto work = group->all_reduce(t);
      if (rank == victim && step == moment) {
        moments.killed = bench::seconds_now();
        raise(SIGKILL);
      }
      work->wait();
    }
  } catch (const ls::CommError& error) {
    moments.heard[rank] = bench::seconds_now();
    moments.was_named[rank] = std::strstr(error.what(), ("rank " + std::to_string(victim)).c_str()) != nullptr;
  }
}

pid_t start_process(const std::function<void()>& body) {
  const pid_t child = fork();
  if (child < 0) std::abort();
  if (child > 0) return child;
  body();
  _exit(0);
}

// The time at which a process has ended. Waits for it, at most 30 s.
double end_of(pid_t process) {
  const int fd = static_cast<int>(syscall(SYS_pidfd_open, process, 0));
  pollfd ended{fd, POLLIN, 0};
  if (fd < 0 || poll(&ended, 1, 30'000) != 1) std::abort();
  close(fd);
  return bench::seconds_now();
}

// Seconds since the kill.
struct Delays {
  double heard;  // the last survivor has its error
  double ended;  // the killed process has ended
};

// Exits if a survivor does not name the victim.
Delays delays_after_kill(const Rows& rows, int number) {
  void* const memory = mmap(nullptr, sizeof(Moments), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) std::abort();
  auto* const moments = new (memory) Moments;
  const int victim = number % rows.ranks;
  setenv("MASTER_ADDR", "127.0.0.1", 1);
  setenv("MASTER_PORT", std::to_string(20000 + (getpid() * 128 + number) % 40000).c_str(), 1);
  std::vector<pid_t> children;
  for (int rank = 0; rank < rows.ranks; ++rank) {
    children.push_back(start_process([&] {
      ls::set_num_threads(1);
      const std::int64_t count = rows.counts[static_cast<std::size_t>(number) % rows.counts.size()];
      be_rank(rows, rank, victim, 3 + number % 7, count, *moments);
    }));
  }
  const double ended = end_of(children[static_cast<std::size_t>(victim)]);
  for (const pid_t child : children) waitpid(child, nullptr, 0);
  Delays delays{0, ended - moments->killed};
  for (int rank = 0; rank < rows.ranks; ++rank) {
    if (rank == victim) continue;
    if (!moments->was_named[rank]) {
      std::fprintf(stderr, "%s, kill %d: rank %d does not name rank %d\n", rows.name.c_str(), number, rank, victim);
      std::exit(1);
    }
    delays.heard = std::max(delays.heard, moments->heard[rank] - moments->killed);
  }
  munmap(memory, sizeof(Moments));
  return delays;
}

std::vector<Delays> kill_ranks(const Rows& rows, int kills) {
  std::vector<pid_t> busy;
  for (int i = 0; i < rows.busy_processes; ++i) {
    busy.push_back(start_process([] {
      prctl(PR_SET_PDEATHSIG, SIGKILL);
      for (volatile unsigned turns = 0;;) turns = turns + 1;
    }));
  }
  // This process only watches: first in line for a core, if it may be, it sees the end at once.
  const sched_param first{.sched_priority = 1};
  if (sched_setscheduler(0, SCHED_FIFO | SCHED_RESET_ON_FORK, &first) != 0)
    std::fprintf(stderr, "no real-time priority: the rows \"ended\" include this process's own waits for a core\n");
  std::vector<Delays> delays;
  for (int number = 0; number < kills; ++number) delays.push_back(delays_after_kill(rows, number));
  for (const pid_t process : busy) {
    kill(process, SIGKILL);
    waitpid(process, nullptr, 0);
  }
  return delays;
}

void print_rows(const std::string& name, std::vector<double> seconds) {
  std::sort(seconds.begin(), seconds.end());
  const auto percentile = [&](std::size_t percent) { return seconds[(seconds.size() * percent + 99) / 100 - 1]; };
  bench::print_row(name + "_p50", percentile(50));
  bench::print_row(name + "_p99", percentile(99));
  bench::print_row(name + "_max", seconds.back());
}

}  // namespace

int main(int argc, char** argv) {
  const bench::Arguments arguments(argc, argv);
  const int kills = std::max(1, std::stoi(arguments.get("kills", "100")));
  const Rows all_rows[] = {{"shm", "shm", 3, {100, 1'000'000}, 0},
                           {"gloo", "gloo", 3, {100, 1'000'000}, 0},
                           {"busy", "shm", 2, {3 << 20}, 2}};
  for (const Rows& rows : all_rows) {
    const std::string name = "survivor_" + rows.name;
    const bool is_wanted = bench::wanted(name + "_p50") || bench::wanted(name + "_p99") || bench::wanted(name + "_max");
    if (arguments.get("rows", rows.name) != rows.name || !is_wanted) continue;
    std::vector<double> heard, ended;
    for (const Delays& delays : kill_ranks(rows, kills)) {
      heard.push_back(delays.heard);
      ended.push_back(delays.ended);
    }
    print_rows(name, heard);
    print_rows(name + "_ended", ended);
  }
}
