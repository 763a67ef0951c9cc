// One rank of a job is killed, and every survivor must report it. Definitions:
//
// - The job: 3 or 4 processes of one host make a group, reduce a tensor, split the group, wrap a model in
// DistributedDataParallel, train for some steps and destroy everything. They start at the same time.
// - The kill: SIGKILL for one process, either before its n-th interposed call (KillPoints) or at a random moment of a
// random phase of the job. A trial whose victim ended before the kill is void.
// - A survivor is any other rank. It has *finished* if its job ended without an error, since it needed nothing more
// from the victim. It has *named* the victim if it got a CommError whose text blames the victim and no other rank. Any
// other end is *wrong*. The text blames the ranks that it mentions, except the rank on which the operation ran ("on
// rank 2") and ranks that it reports as present ("ranks 0 and 1 are here").
// - A survivor is *late* if its error arrived more than two seconds after the kill. Before the victim has entered the
// rendezvous only the timeout can reveal its loss, because no other rank knows whether it was started: such an error
// says "did not arrive", or of rank 0 on another host "no rank 0 of this job", and is not late.
// - A trial may stop its victim instead (SIGSTOP): then only the timeout reveals it, and a survivor is late after
// three timeouts.
// - The rank after the victim may be slow, so that the survivors are in different parts of the job.
// - After its error a survivor either destroys its objects or exits at once, like a program that does not catch the
// error.
#pragma once

#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <map>
#include <random>
#include <regex>
#include <set>

#include "tests/support/chaos.h"
#include "tests/support/kill_points.h"
#include "tests/support/ports.h"
#include "tests/support/watched_process.h"

enum class JobPhase : int { kStart, kInit, kCollective, kSplit, kModel, kSteps, kEnd, kDone };
inline const char* name(JobPhase phase) {
  constexpr const char* kNames[] = {"start", "init", "collective", "split", "model", "steps", "end", "done"};
  return kNames[static_cast<int>(phase)];
}

struct KillTrial {
  std::string backend = "shm", method = "env";  // env, tcp, file, or hosts: TLS, as ranks of several hosts
  int size = 3, victim = 0;
  int point = 0;                      // the victim ends before this call; 0: at a random moment
  JobPhase phase = JobPhase::kStart;  // the random moment: the phase of the victim, ...
  std::int64_t delay_us = -1;         // ... and the delay after its start; negative: no kill
  bool stops = false;                 // SIGSTOP instead of SIGKILL
  std::int64_t slow_us = 0;           // sleep of the slow rank before every point; 0: no rank is slow
  bool unwinds = true;                // a survivor destroys its objects
  std::chrono::milliseconds timeout = std::chrono::seconds(5);
};

// Results of the ranks of a trial, in memory that is shared with the test.
struct TrialBoard {
  std::atomic<int> ready{0}, go{0}, points{0};
  std::atomic<std::int64_t> killed_at{0};
  struct Rank {
    std::atomic<int> phase{0};
    std::atomic<std::int64_t> entered_at[8] = {};  // start of each phase
    std::atomic<std::int64_t> ended_at{0};
    std::atomic<bool> failed{false};
    char text[3000] = {};
  } ranks[4];
};

struct KillTally {
  int trials = 0, voids = 0, finished = 0, named = 0, wrong = 0, late = 0;
  std::map<std::string, int> by_phase;        // kills in each phase of the victim
  std::vector<std::string> failures = {};     // survivors that are wrong
  std::vector<std::string> delays = {};       // survivors that are late
  std::int64_t slowest_us = 0;                // from the kill to the slowest error that is not exempt
  int job_points = 0;                         // calls that the victim passed in the last trial
  std::array<std::int64_t, 8> phase_us = {};  // duration of the victim's phases

  std::string to_string() const {
    std::string text = std::to_string(trials) + " kills (" + std::to_string(voids) +
                       " void): " + std::to_string(named) + " survivors named the victim, " + std::to_string(finished) +
                       " had finished, " + std::to_string(wrong) + " wrong, " + std::to_string(late) +
                       " late; the slowest after " + std::to_string(slowest_us / 1000) + " ms;";
    for (const auto& [phase, count] : by_phase) text += " " + phase + " " + std::to_string(count);
    return text;
  }
};

// Returns the ranks that an error blames.
inline std::set<int> blamed_ranks(std::string text) {
  text = std::regex_replace(text, std::regex("on rank \\d+"), "");
  text = std::regex_replace(text, std::regex("; ranks? [0-9, and]+ (is|are) here"), "");
  std::set<int> blamed;
  const std::regex list("ranks? (\\d+(?:(?:, | and )\\d+)*)"), number("\\d+");
  for (std::sregex_iterator at(text.begin(), text.end(), list), end; at != end; ++at) {
    const std::string numbers = (*at)[1];
    for (std::sregex_iterator each(numbers.begin(), numbers.end(), number); each != end; ++each)
      blamed.insert(std::stoi(each->str()));
  }
  return blamed;
}

inline std::filesystem::path store_file(const std::string& group) {
  return std::filesystem::current_path() / ("store " + group);
}

inline ls::parallel::InitOptions options_of(const KillTrial& trial, int rank, const std::string& group, int port) {
  ls::parallel::InitOptions options{
      .backend = trial.backend, .timeout = trial.timeout, .world_size = trial.size, .rank = rank, .group_name = group};
  options.authenticate = false;
  if (trial.method == "tcp") options.init_method = "tcp://127.0.0.1:" + std::to_string(port);
  if (trial.method == "file") options.init_method = "file://" + store_file(group).string();
  if (trial.method == "hosts") {
    const std::string port_text = std::to_string(port);
    for (const auto& [variable, value] :
         {std::pair("MASTER_ADDR", "127.0.0.1"), std::pair("MASTER_PORT", port_text.c_str()), std::pair("RANK", "0"),
          std::pair("LOCAL_WORLD_SIZE", "1"), std::pair("LOCKSTEP_JOB_TOKEN", "0123456789abcdef0123456789abcdef")})
      setenv(variable, value, 1);
    options.authenticate = true;
  }
  return options;
}

// Runs the job of one rank.
inline void run_job(const ls::parallel::InitOptions& options, bool unwinds, TrialBoard::Rank& own) {
  const auto enter = [&](JobPhase phase) {
    own.entered_at[static_cast<int>(phase)] = monotonic_us();
    own.phase = static_cast<int>(phase);
  };
  Group group, part;
  TwoLayers model;
  std::unique_ptr<ls::parallel::DistributedDataParallel> ddp;
  try {
    enter(JobPhase::kInit);
    group = ls::parallel::init_process_group(options);
    enter(JobPhase::kCollective);
    group->all_reduce(ls::ones({50'000}))->wait();
    enter(JobPhase::kSplit);
    part = group->split(0);
    part->all_reduce(ls::ones({10}))->wait();
    enter(JobPhase::kModel);
    ddp = std::make_unique<ls::parallel::DistributedDataParallel>(
        model, group, ls::parallel::DistributedDataParallelOptions{.bucket_cap_mb = 0.0005});
    enter(JobPhase::kSteps);
    ls::optim::SGD optimizer(model.parameters(), {.lr = 0.1});
    const ls::Tensor x = numbers({8, 4}, {}, 8), y = numbers({8, 2}, {}, 9);
    for (int step = 0; step < 20; ++step) {
      optimizer.zero_grad();
      ls::nn::mse_loss((*ddp)(x), y).backward();
      optimizer.step();
    }
    enter(JobPhase::kEnd);
    ddp.reset();
    part.reset();
    group.reset();
    enter(JobPhase::kDone);
  } catch (const ls::Error& error) {
    own.ended_at = monotonic_us();
    std::strncpy(own.text, error.what(), sizeof(own.text) - 1);
    own.failed = true;
    if (!unwinds) _exit(0);
    throw;
  }
}

// Between two looks at what other processes have written: yielding alone would take time from those processes.
inline void pause_briefly() {
  const timespec pause{0, 100'000};
  nanosleep(&pause, nullptr);
}

inline void run_trial_rank(const KillTrial& trial, int rank, const std::string& group, int port, TrialBoard& board) {
  set_master(group);
  const ls::parallel::InitOptions options = options_of(trial, rank, group, port);
  TrialBoard::Rank& own = board.ranks[rank];
  if (rank == trial.victim) kill_points.arm(trial.point, trial.stops ? SIGSTOP : SIGKILL, &board.killed_at);
  if (rank == (trial.victim + 1) % trial.size) kill_points.delay_us = trial.slow_us;
  ++board.ready;
  while (board.go == 0) pause_briefly();
  try {
    run_job(options, trial.unwinds, own);
  } catch (const ls::Error&) {
    return;
  }
  if (rank == trial.victim) board.points = kill_points.passed.load();
}

// Waits for a process, and kills it if it has not ended by `until_us`. Returns whether it ended by itself.
inline bool reap(pid_t process, std::int64_t until_us) {
  const WatchedProcess watched(process);
  const bool ended =
      watched.ends(std::chrono::milliseconds(std::max<std::int64_t>(until_us - monotonic_us(), 0) / 1000));
  if (!ended) kill(process, SIGKILL);
  while (waitpid(process, nullptr, 0) < 0 && errno == EINTR) {
  }
  return ended;
}

inline void judge(const KillTrial& trial, const TrialBoard& board, int rank, bool hung, KillTally& tally) {
  const TrialBoard::Rank& own = board.ranks[rank];
  const std::string text = own.text;
  if (!own.failed && !hung) {
    ++tally.finished;
    return;
  }
  const std::int64_t took = own.ended_at - board.killed_at;
  const bool is_named = !hung && blamed_ranks(text) == std::set<int>{trial.victim},
             is_exempt = contains(text, "did not arrive") || contains(text, ": no rank 0 of this job");
  const std::int64_t most = trial.stops ? 3000 * trial.timeout.count() : 2'000'000;
  const bool is_late = is_named && !is_exempt && took > most;
  is_named ? ++tally.named : ++tally.wrong;
  tally.late += is_late ? 1 : 0;
  if (is_named && !is_exempt) tally.slowest_us = std::max(tally.slowest_us, took);
  if (is_named && !is_late) return;
  (is_named ? tally.delays : tally.failures)
      .push_back(trial.backend + " " + trial.method + " size " + std::to_string(trial.size) + " victim " +
                 std::to_string(trial.victim) + " point " + std::to_string(trial.point) + " delay " +
                 std::to_string(trial.delay_us) + " in " + name(trial.phase) + (trial.unwinds ? " unwinds" : " exits") +
                 (trial.slow_us > 0 ? ", next rank slow" : "") + (trial.stops ? ", stopped in " : ", killed in ") +
                 name(static_cast<JobPhase>(board.ranks[trial.victim].phase.load())) + ": rank " +
                 std::to_string(rank) + " in " + name(static_cast<JobPhase>(own.phase.load())) +
                 (hung ? " hung" : " after " + std::to_string(took / 1000) + " ms: ") + text);
}

// Runs one trial and adds its result to `tally`.
inline void run_kill_trial(const KillTrial& trial, KillTally& tally) {
  void* const memory = mmap(nullptr, sizeof(TrialBoard), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  REQUIRE(memory != MAP_FAILED);
  TrialBoard& board = *new (memory) TrialBoard;
  const std::string group = fresh_group();
  const int port = trial.method == "tcp" || trial.method == "hosts" ? free_port() : 0;
  std::vector<pid_t> processes;
  for (int rank = 0; rank < trial.size; ++rank) {
    std::fflush(nullptr);
    processes.push_back(fork());
    REQUIRE(processes.back() >= 0);
    if (processes.back() != 0) continue;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    run_trial_rank(trial, rank, group, port, board);
    _exit(0);
  }
  while (board.ready < trial.size) pause_briefly();
  const std::int64_t begin = monotonic_us();
  board.go = 1;
  const pid_t victim = processes[static_cast<std::size_t>(trial.victim)];
  if (trial.point == 0 && trial.delay_us >= 0) {
    const TrialBoard::Rank& own = board.ranks[trial.victim];
    while (own.phase < static_cast<int>(trial.phase) && !own.failed) pause_briefly();
    const timespec pause{trial.delay_us / 1'000'000, trial.delay_us % 1'000'000 * 1000};
    nanosleep(&pause, nullptr);  // until the moment of the kill
    board.killed_at = monotonic_us();
    kill(victim, trial.stops ? SIGSTOP : SIGKILL);
  }
  const std::int64_t until = begin + 1000 * (3 * trial.timeout.count() + 20'000);
  std::vector<bool> hung(processes.size());
  for (std::size_t k = 1; k <= processes.size(); ++k) {  // the victim last: it may be stopped
    const std::size_t rank = (static_cast<std::size_t>(trial.victim) + k) % processes.size();
    if (k == processes.size() && trial.stops && board.killed_at != 0) kill(victim, SIGKILL);
    hung[rank] = !reap(processes[rank], until);
  }
  const TrialBoard::Rank& dead = board.ranks[trial.victim];
  const auto phase = static_cast<JobPhase>(dead.phase.load());
  tally.job_points = board.points;
  for (std::size_t i = 1; i < tally.phase_us.size(); ++i)
    tally.phase_us[i - 1] = dead.entered_at[i] - (i == 1 ? begin : dead.entered_at[i - 1].load());
  ++tally.trials;
  ++tally.by_phase[name(phase)];
  const bool is_void = phase == JobPhase::kDone || dead.failed || board.killed_at == 0;
  tally.voids += is_void ? 1 : 0;
  for (int rank = 0; rank < trial.size && !is_void; ++rank) {
    if (rank != trial.victim) judge(trial, board, rank, hung[static_cast<std::size_t>(rank)], tally);
  }
  std::filesystem::remove(store_file(group));
  board.~TrialBoard();
  munmap(memory, sizeof(TrialBoard));
}
