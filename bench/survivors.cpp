// How soon the other ranks get an error after one of them was killed: from just before its SIGKILL to the moment at
// which the last survivor has its CommError. Three ranks run sums, small and large ones alternately; one job per kill.
//   bench_survivors [--kills 100] [--backend shm|gloo]      default: both backends
#include <signal.h>

#include <cstring>

#include "support/arguments.h"
#include "support/ranks.h"
#include "support/timing.h"

namespace ls = lockstep;

namespace {

constexpr int kRanks = 3;

struct Moments {
  double killed = 0;            // steady clock, seconds
  double heard[kRanks] = {};    // time of a rank's error
  bool was_named[kRanks] = {};  // true if the error named the victim
};

void be_rank(int rank, int victim, int moment, std::int64_t count, const std::string& backend, Moments& moments) {
  const bench::Group group = ls::parallel::init_process_group({.backend = backend, .world_size = kRanks, .rank = rank});
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

// Seconds until the last survivor has its error. Exits if a survivor does not name the victim.
double seconds_after_kill(int number, const std::string& backend) {
  void* const memory = mmap(nullptr, sizeof(Moments), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) std::abort();
  auto* const moments = new (memory) Moments;
  const int victim = number % kRanks;
  setenv("MASTER_ADDR", "127.0.0.1", 1);
  setenv("MASTER_PORT", std::to_string(20000 + (getpid() * 128 + number) % 40000).c_str(), 1);
  pid_t children[kRanks];
  for (int rank = 0; rank < kRanks; ++rank) {
    children[rank] = fork();
    if (children[rank] < 0) std::abort();
    if (children[rank] == 0) {
      ls::set_num_threads(1);
      be_rank(rank, victim, 3 + number % 7, number % 2 == 0 ? 100 : 1'000'000, backend, *moments);
      _exit(0);
    }
  }
  for (const pid_t child : children) waitpid(child, nullptr, 0);
  double last = 0;
  for (int rank = 0; rank < kRanks; ++rank) {
    if (rank == victim) continue;
    if (!moments->was_named[rank]) {
      std::fprintf(stderr, "%s, kill %d: rank %d does not name rank %d\n", backend.c_str(), number, rank, victim);
      std::exit(1);
    }
    last = std::max(last, moments->heard[rank] - moments->killed);
  }
  munmap(memory, sizeof(Moments));
  return last;
}

}  // namespace

int main(int argc, char** argv) {
  const bench::Arguments arguments(argc, argv);
  const int kills = std::max(1, std::stoi(arguments.get("kills", "100")));
  for (const std::string backend : {"shm", "gloo"}) {
    const std::string name = "survivor_" + backend;
    const bool is_wanted = bench::wanted(name + "_p50") || bench::wanted(name + "_p99") || bench::wanted(name + "_max");
    if (arguments.get("backend", backend) != backend || !is_wanted) continue;
    std::vector<double> seconds;
    for (int number = 0; number < kills; ++number) seconds.push_back(seconds_after_kill(number, backend));
    std::sort(seconds.begin(), seconds.end());
    const auto percentile = [&](int percent) {
      return seconds[static_cast<std::size_t>((kills * percent + 99) / 100 - 1)];
    };
    bench::print_row(name + "_p50", percentile(50));
    bench::print_row(name + "_p99", percentile(99));
    bench::print_row(name + "_max", seconds.back());
  }
}
