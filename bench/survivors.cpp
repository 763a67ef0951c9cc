// How soon the other ranks get an error after one of them was killed: from just before its SIGKILL to the moment at
// which the last survivor has its CommError; one job per kill. Three ranks run sums, small and large ones alternately;
// in the rows "busy" two ranks run sums of 12 MiB while two other processes use the cores.
//   bench_survivors [--kills 100] [--rows shm|gloo|busy]      default: all
#include <signal.h>
#include <sys/prctl.h>

#include <cstring>

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

// Seconds until the last survivor has its error. Exits if a survivor does not name the victim.
double seconds_after_kill(const Rows& rows, int number) {
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
  for (const pid_t child : children) waitpid(child, nullptr, 0);
  double last = 0;
  for (int rank = 0; rank < rows.ranks; ++rank) {
    if (rank == victim) continue;
    if (!moments->was_named[rank]) {
      std::fprintf(stderr, "%s, kill %d: rank %d does not name rank %d\n", rows.name.c_str(), number, rank, victim);
      std::exit(1);
    }
    last = std::max(last, moments->heard[rank] - moments->killed);
  }
  munmap(memory, sizeof(Moments));
  return last;
}

std::vector<double> kill_ranks(const Rows& rows, int kills) {
  std::vector<pid_t> busy;
  for (int i = 0; i < rows.busy_processes; ++i) {
    busy.push_back(start_process([] {
      prctl(PR_SET_PDEATHSIG, SIGKILL);
      for (volatile unsigned turns = 0;;) turns = turns + 1;
    }));
  }
  std::vector<double> seconds;
  for (int number = 0; number < kills; ++number) seconds.push_back(seconds_after_kill(rows, number));
  for (const pid_t process : busy) {
    kill(process, SIGKILL);
    waitpid(process, nullptr, 0);
  }
  std::sort(seconds.begin(), seconds.end());
  return seconds;
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
    const std::vector<double> seconds = kill_ranks(rows, kills);
    const auto percentile = [&](int percent) {
      return seconds[static_cast<std::size_t>((kills * percent + 99) / 100 - 1)];
    };
    bench::print_row(name + "_p50", percentile(50));
    bench::print_row(name + "_p99", percentile(99));
    bench::print_row(name + "_max", seconds.back());
  }
}
