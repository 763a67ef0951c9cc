// Ranks that are killed or stopped while several ranks compute one model: every other rank gets an error that names the
// rank. Ranks are processes.
#pragma once

#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <new>
#include <regex>
#include <set>
#include <string>
#include <vector>

#include "tests/support/groups.h"
#include "tests/support/kill_points.h"

namespace model_faults {

constexpr int kRanks = 4;

// Time-out of a group in which a rank is hit by the signal.
inline std::chrono::milliseconds timeout_of(int signal) {
  return std::chrono::milliseconds(signal != SIGSTOP ? 30'000 : LOCKSTEP_SLOWDOWN > 1 ? 4000 : 2000);
}

// Memory that all ranks of a group and the test share.
struct Board {
  std::atomic<std::int64_t> struck_at{0};  // when the signal was raised
  std::atomic<int> victim{0}, reported{0};
  // On the victim.
  void strike(int signal) {
    victim = getpid();
    struck_at = monotonic_us();
    kill(getpid(), signal);
    _exit(3);  // a stopped process is killed and does not continue
  }
};

class Boards {
 public:
  explicit Boards(std::size_t count) : bytes_(count * sizeof(Board)) {
    void* const memory = mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    REQUIRE(memory != MAP_FAILED);
    boards_ = static_cast<Board*>(memory);
    for (std::size_t i = 0; i < count; ++i) new (boards_ + i) Board;
  }
  ~Boards() { munmap(boards_, bytes_); }
  Boards(const Boards&) = delete;
  Boards& operator=(const Boards&) = delete;
  Board& operator[](std::size_t i) const { return boards_[i]; }

 private:
  std::size_t bytes_;
  Board* boards_ = nullptr;
};

// The ranks that an error reports as missing, by their numbers in the group of all ranks.
inline std::set<int> missing_ranks(const std::string& error) {
  static const std::regex missing(
      "rank (\\d+)(?: \\(global rank (\\d+)\\))? (?:is gone|has left|did not|does not|has not)");
  std::set<int> ranks;
  for (std::sregex_iterator at(error.begin(), error.end(), missing), end; at != end; ++at)
    ranks.insert(std::stoi((*at)[2].matched ? (*at)[2] : (*at)[1]));
  return ranks;
}

struct GroupOptions {
  const char* backend = "shm";
  int ranks = kRanks;
};

// On a rank that is not the victim, with its error. The last one ends a victim that is stopped.
inline void check_report(int signal, int victim, Board& board, const std::string& error,
                         const GroupOptions& options = {}) {
  const std::int64_t took_ms = (monotonic_us() - board.struck_at) / 1000, timeout_ms = timeout_of(signal).count();
  CHECK(board.struck_at != 0);
  if (++board.reported == options.ranks - 1 && signal == SIGSTOP && board.victim > 0) kill(board.victim, SIGKILL);
  const std::set<int> missing = missing_ranks(error);
  CHECK_MESSAGE(missing == std::set<int>{victim}, error);
  const char* const how = options.backend == std::string("shm") ? "is gone: its process " : "is gone";
  if (signal == SIGKILL) CHECK_MESSAGE(contains(error, how), error);
  // The end of a process is detected without the time-out.
  CHECK(took_ms < (signal == SIGSTOP ? 3 * timeout_ms : timeout_ms / 2));
}

// Runs the faults at the same time, each in a group of its own: run_rank(fault, group, board). A fault has members
// `signal`, `victim` and `describe`. Instrumented ranks run two groups at a time, so that none of them looks stopped.
template <class Fault, class RunRank>
void check_faults(const std::vector<Fault>& faults, const RunRank& run_rank, const GroupOptions& options = {}) {
  if (LOCKSTEP_SLOWDOWN > 1 && faults.size() > 2) {
    check_faults(std::vector(faults.begin(), faults.begin() + 2), run_rank, options);
    return check_faults(std::vector(faults.begin() + 2, faults.end()), run_rank, options);
  }
  const Boards boards(faults.size());
  std::vector<std::string> names;
  for (std::size_t i = 0; i < faults.size(); ++i) names.push_back(fresh_group());
  const int count = static_cast<int>(faults.size()) * options.ranks;
  const std::vector<ExitStatus> ended = run_processes(count, [&](int process) {
    const auto trial = static_cast<std::size_t>(process / options.ranks);
    const Fault& fault = faults[trial];
    set_master(names[trial]);
    run_rank(fault,
             ls::parallel::init_process_group({.backend = options.backend,
                                               .timeout = timeout_of(fault.signal),
                                               .world_size = options.ranks,
                                               .rank = process % options.ranks,
                                               .group_name = names[trial]}),
             boards[trial]);
  });
  for (int process = 0; process < count; ++process) {
    const Fault& fault = faults[static_cast<std::size_t>(process / options.ranks)];
    const ExitStatus& status = ended[static_cast<std::size_t>(process)];
    const std::string text = fault.describe();
    CAPTURE(text);
    if (process % options.ranks == fault.victim)
      CHECK_MESSAGE((status.signal == SIGKILL && !status.timed_out), status.to_string());
    else
      CHECK_MESSAGE(status.ok(), "rank " << process % options.ranks << ": " << status.to_string());
  }
}

}  // namespace model_faults
