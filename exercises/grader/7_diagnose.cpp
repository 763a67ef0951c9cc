// Exercise 7: four runs, each with a fault on one rank in one step; writes their reports and compares the answers with the
// faults.
#include <algorithm>
#include <array>
#include <barrier>
#include <cinttypes>
#include <cstdio>
#include <fstream>
#include <iomanip>

#include "harness.h"

namespace grader {
namespace {

constexpr int kRanks = 4, kSteps = 14;
constexpr int kHashEvery = 5;  // steps between two hashes in a report
const std::array<std::string, 4> kCauses = {"straggler", "mismatch", "dropped rank", "diverged weight"};

struct Fault {
  std::string cause;
  int rank = 0, step = 0;  // steps count from 1
};

// One run of each cause, in an order that the seed determines.
std::vector<Fault> choose_faults(std::uint64_t seed) {
  Dice dice(seed);
  std::vector<Fault> faults;
  for (const std::string& cause : kCauses) faults.push_back({cause, dice.roll(kRanks), 4 + dice.roll(kSteps - 5)});
  dice.shuffle(faults);
  return faults;
}

// A line of a rank's log.
struct Line {
  double waited_ms = 0, gradient_norm = 0;
  std::uint64_t parameters = 0;
};
struct Log {
  std::vector<Line> steps;
  std::string error;
};

struct Mlp : ls::nn::Module {
  ls::nn::Linear& fc1 = add<ls::nn::Linear>("fc1", 16, 24);
  ls::nn::Linear& fc2 = add<ls::nn::Linear>("fc2", 24, 1);
  Mlp() { set_parameters(*this); }
  ls::Tensor forward(const ls::Tensor& x) const override { return fc2(ls::relu(fc1(x))); }
};

// Trains and writes the log; `fault` is this rank's own, or null. All ranks begin a step together, at a barrier. So when a
// rank fails, no other rank is still in the step before, and reports are the same in each run.
void train(const Group& group, par::Simulation& clock, const Fault* fault, Dice dice, std::barrier<>& step_barrier,
           Log& log) {
  Mlp mlp;
  par::DistributedDataParallel ddp(mlp, group);
  ls::optim::SGD optimizer(mlp.parameters(), {.lr = 0.01});
  for (int step = 1; step <= kSteps; ++step) {
    step_barrier.arrive_and_wait();
    const std::string cause = fault && fault->step == step ? fault->cause : "";
    if (cause == "dropped rank") return;
    if (cause == "mismatch") group->all_reduce(ls::zeros({3}))->wait();
    optimizer.zero_grad();
    const double computing = 1e-3 * (2 + 0.01 * dice.roll(40) + (cause == "straggler" ? 1 : 0));
    const double begin = clock.seconds();
    clock.compute(computing);
    const ls::Tensor x = ls::full({8, 16}, 0.1 * dice.roll(20));
    const ls::Tensor error = ddp(x) - x.slice(1, 0, 1, 1);
    ls::mean(error * error).backward();
    if (cause == "diverged weight") mlp.fc1.parameters()[0]->grad().add_(1e-3);
    const double waited_ms = (clock.seconds() - begin - computing) * 1e3;
    const double norm = mlp.fc1.weight->grad().norm().item<double>();
    optimizer.step();
    log.steps.push_back({.waited_ms = waited_ms, .gradient_norm = norm, .parameters = ls::nn::parameter_hash(mlp)});
  }
}

std::vector<Log> run(const Fault& fault, std::uint64_t seed) {
  std::vector<Log> logs(kRanks);
  std::barrier step_barrier(kRanks);
  run_simulated(kRanks, par::find_link("10GbE"), [&](const Group& group, par::Simulation& clock) {
    const int rank = group->rank();
    Log& log = logs[static_cast<std::size_t>(rank)];
    try {
      train(group, clock, rank == fault.rank ? &fault : nullptr, Dice(seed + static_cast<std::uint64_t>(rank)),
            step_barrier, log);
    } catch (const ls::Error& error) {
      log.error = error.what();
    }
    step_barrier.arrive_and_drop();
  });
  return logs;
}

std::string cell(const Log& log, int step) {
  if (step > std::ssize(log.steps)) return "-";
  const Line& line = log.steps[static_cast<std::size_t>(step - 1)];
  std::array<char, 60> text{};
  std::snprintf(text.data(), text.size(), "%6.3f  %.7f", line.waited_ms, line.gradient_norm);
  if (step % kHashEvery != 0) return text.data();
  std::array<char, 20> hash{};
  std::snprintf(hash.data(), hash.size(), "  %08" PRIx64, line.parameters >> 32);
  return std::string(text.data()) + hash.data();
}

void write_report(const std::string& path, const std::vector<Log>& logs) {
  std::ofstream file(path);
  file << kRanks
       << " ranks. For each rank and step: the ms for which it waited for others (simulated clock), the norm of the\n"
       << "averaged gradient of fc1.weight, and after every " << kHashEvery
       << "th step a hash of its parameters. A column ends\n"
       << "where the rank's log ends. The errors of the ranks follow.\n\nstep" << std::left;
  for (int rank = 0; rank < kRanks; ++rank) file << "  " << std::setw(30) << text("rank ", rank);
  for (int step = 1; step <= kSteps; ++step) {
    file << '\n' << std::right << std::setw(4) << step << std::left;
    for (const Log& log : logs) file << "  " << std::setw(30) << cell(log, step);
  }
  file << "\n\n";
  for (int rank = 0; rank < kRanks; ++rank) {
    const std::string& error = logs[static_cast<std::size_t>(rank)].error;
    file << "rank " << rank << ": " << (error.empty() ? "no error" : error) << '\n';
  }
  if (!file.flush()) throw ls::IoError(path + ": cannot be written");
}

void add_checks(std::vector<Check>& all, const std::shared_ptr<Answers>& answers, char letter, const Fault& fault) {
  const auto key = [letter](const char* what) { return std::string(1, letter) + '_' + what; };
  all.push_back({key("cause"), [answers, key = key("cause"), fault] {
                   const std::string word = answers->word(key);
                   require(std::find(kCauses.begin(), kCauses.end(), word) != kCauses.end(), "there is no cause \"",
                           word.substr(0, 40), "\"; the causes are straggler, mismatch, dropped rank, diverged weight");
                   require(word == fault.cause, "\"", word, "\" is not the injected fault");
                   return word;
                 }});
  for (const auto& [what, injected] : {std::pair{"rank", fault.rank}, std::pair{"step", fault.step}})
    all.push_back({key(what), [answers, key = key(what), what = what, injected = injected] {
                     const double have = answers->number(key);
                     require(have == injected, have, " is not the ", what, " of the injected fault");
                     return text(have);
                   }});
}

}  // namespace

std::vector<Check> checks(const std::string& file, const std::string& out) {
  const auto answers = std::make_shared<Answers>(file);
  const std::uint64_t seed = seed_of(answers.get());
  print_task(text("reports a.txt to d.txt of seed ", seed));
  std::vector<Check> all;
  char letter = 'a';
  for (const Fault& fault : choose_faults(seed)) {
    write_report(out + '/' + letter + ".txt", run(fault, seed));
    add_checks(all, answers, letter++, fault);
  }
  return all;
}

}  // namespace grader
