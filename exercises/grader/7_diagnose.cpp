// Exercise 7: four runs, each with a fault on one rank in one step; their reports, and the answers beside what was injected.
#include <algorithm>
#include <array>
#include <barrier>
#include <cinttypes>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <iomanip>

#include "harness.h"

namespace grader {
namespace {

constexpr int kRanks = 4, kSteps = 14;
const std::array<std::string, 4> kCauses = {"straggler", "mismatch", "dropped rank", "diverged weight"};

// Numbers that follow from a seed alone, on every machine (splitmix64).
class Dice {
 public:
  explicit Dice(std::uint64_t seed) : state_(seed) {}
  int roll(int sides) {
    std::uint64_t z = state_ += 0x9e3779b97f4a7c15;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
    z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
    return static_cast<int>((z ^ (z >> 31)) % static_cast<std::uint64_t>(sides));
  }

 private:
  std::uint64_t state_;
};

struct Fault {
  std::string cause;
  int rank = 0, step = 0;  // steps count from 1
};

// One run of each cause, in an order that the seed gives.
std::vector<Fault> choose_faults(std::uint64_t seed) {
  Dice dice(seed);
  std::vector<Fault> faults;
  for (const std::string& cause : kCauses) faults.push_back({cause, dice.roll(kRanks), 4 + dice.roll(kSteps - 5)});
  for (int i = 3; i > 0; --i)
    std::swap(faults[static_cast<std::size_t>(i)], faults[static_cast<std::size_t>(dice.roll(i + 1))]);
  return faults;
}

// What a rank would write into its log.
struct Line {
  double waited_ms = 0;
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

// Trains, and writes the log; `fault` is this rank's own, or null. At the gate all ranks begin a step together, so that none
// is still in the step before when another fails, and reports are the same in each run.
void train(const Group& group, par::Simulation& clock, const Fault* fault, Dice dice, std::barrier<>& gate, Log& log) {
  Mlp mlp;
  par::DistributedDataParallel ddp(mlp, group);
  ls::optim::SGD optimizer(mlp.parameters(), {.lr = 0.01});
  for (int step = 1; step <= kSteps; ++step) {
    gate.arrive_and_wait();
    const std::string cause = fault && fault->step == step ? fault->cause : "";
    if (cause == "dropped rank") return;
    if (cause == "mismatch") group->all_reduce(ls::zeros({3}))->wait();
    optimizer.zero_grad();
    const double computing = 1e-3 * (2 + 0.01 * dice.roll(40) + (cause == "straggler" ? 3 : 0));
    const double begin = clock.seconds();
    clock.compute(computing);
    const ls::Tensor x = ls::full({8, 16}, 0.1 * dice.roll(20));
    const ls::Tensor error = ddp(x) - x.slice(1, 0, 1, 1);
    ls::mean(error * error).backward();
    if (cause == "diverged weight") mlp.fc1.parameters()[0]->grad().add_(1e-3);
    optimizer.step();
    log.steps.push_back({(clock.seconds() - begin - computing) * 1e3, ls::nn::parameter_hash(mlp)});
  }
}

std::vector<Log> run(const Fault& fault, std::uint64_t seed) {
  std::vector<Log> logs(kRanks);
  std::barrier gate(kRanks);
  run_simulated(kRanks, par::find_link("10GbE"), [&](const Group& group, par::Simulation& clock) {
    const int rank = group->rank();
    Log& log = logs[static_cast<std::size_t>(rank)];
    try {
      train(group, clock, rank == fault.rank ? &fault : nullptr, Dice(seed + static_cast<std::uint64_t>(rank)), gate,
            log);
    } catch (const ls::Error& error) {
      log.error = error.what();
    }
    gate.arrive_and_drop();
  });
  return logs;
}

void write_report(const std::string& path, const std::vector<Log>& logs) {
  std::ofstream file(path);
  file << kRanks << " ranks. Of each: ms that it waited for others in the step (simulated clock), and the hash of its\n"
       << "parameters after it. A rank's line ends where its log ends; what the ranks reported stands below.\n\nstep";
  for (int rank = 0; rank < kRanks; ++rank) file << "   rank " << rank << "           ";
  for (int step = 0; step < kSteps; ++step) {
    file << '\n' << std::setw(4) << step + 1;
    for (const Log& log : logs) {
      if (step >= std::ssize(log.steps)) {
        file << "   -                ";
        continue;
      }
      const Line& line = log.steps[static_cast<std::size_t>(step)];
      std::array<char, 40> text{};
      std::snprintf(text.data(), text.size(), "   %6.3f  %08" PRIx64, line.waited_ms, line.parameters >> 32);
      file << std::left << std::setw(20) << text.data() << std::right;
    }
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
                           word.substr(0, 40), "\"; there are straggler, mismatch, dropped rank, diverged weight");
                   require(word == fault.cause, "\"", word, "\" is not what was injected");
                   return word;
                 }});
  for (const auto& [what, injected] : {std::pair{"rank", fault.rank}, std::pair{"step", fault.step}})
    all.push_back({key(what), [answers, key = key(what), injected = injected] {
                     const double have = answers->number(key);
                     require(have == injected, have, " is not where it was injected");
                     return text(have);
                   }});
}

}  // namespace

std::vector<Check> checks(const std::string& file, const std::string& out) {
  const auto answers = std::make_shared<Answers>(file);
  const char* const demanded = std::getenv("LOCKSTEP_EXERCISES_SEED");  // by grade.sh --seed
  const double given = demanded ? std::atof(demanded) : answers->number("seed");
  require(given >= 0 && given < 1e15, "\"seed\" is ", given, ", expected 0 to 1e15");
  const auto seed = static_cast<std::uint64_t>(given);
  std::vector<Check> all;
  char letter = 'a';
  for (const Fault& fault : choose_faults(seed)) {
    write_report(out + '/' + letter + ".txt", run(fault, seed));
    add_checks(all, answers, letter++, fault);
  }
  return all;
}

}  // namespace grader
