// Exercise 6: every sample once, for any number of ranks.
#include "harness.h"

namespace grader {
namespace {

using Samples = std::vector<std::int64_t>;

// The seed of the shuffle.
std::int64_t seed() { return 7 + static_cast<std::int64_t>(seed_of()); }
// The sizes of the data set.
std::vector<std::int64_t> sizes() {
  if (seed_of() == 0) return {0, 1, 7, 60, 61};
  Dice dice(seed_of());
  return {0, 1, 2 + dice.roll(8), 50 + dice.roll(20), 71 + dice.roll(30)};
}

std::string check_coverage() {
  for (const std::int64_t n : sizes()) {
    for (int world = 1; world <= 9; ++world) {
      std::vector<int> visits(static_cast<std::size_t>(n), 0);
      for (int rank = 0; rank < world; ++rank) {
        for (const std::int64_t sample : exercises::samples_of_rank(n, world, rank, 0, seed())) {
          require(sample >= 0 && sample < n, n, " samples, ", world, " ranks: rank ", rank, " visits sample ", sample);
          ++visits[static_cast<std::size_t>(sample)];
        }
      }
      for (std::int64_t sample = 0; sample < n; ++sample) {
        const int times = visits[static_cast<std::size_t>(sample)];
        require(times == 1, n, " samples, ", world, " ranks: sample ", sample, " is visited ", times, " times");
      }
    }
  }
  return text("0 to ", sizes().back(), " samples, 1 to 9 ranks");
}

std::string check_balance() {
  for (const std::int64_t n : sizes()) {
    for (int world = 1; world <= 9; ++world) {
      for (int rank = 0; rank < world; ++rank) {
        const auto size = std::ssize(exercises::samples_of_rank(n, world, rank, 0, seed()));
        require(size == n / world || size == (n + world - 1) / world, n, " samples, ", world, " ranks: rank ", rank,
                " has ", size, ", expected ", n / world, " or one more");
      }
    }
  }
  return "shares differ by one sample at most";
}

std::string check_shuffle() {
  const auto samples = [](std::int64_t epoch, std::int64_t seed) {
    return exercises::samples_of_rank(60, 1, 0, epoch, seed);
  };
  Samples plain(60);
  for (std::size_t i = 0; i < plain.size(); ++i) plain[i] = static_cast<std::int64_t>(i);
  require(samples(0, seed()) != plain, "the samples of epoch 0 are in the order of the data");
  require(samples(0, seed()) != samples(1, seed()), "epochs 0 and 1 have the same order");
  require(samples(0, seed()) != samples(0, seed() + 1), "two seeds give the same order");
  require(samples(3, seed()) == samples(3, seed()), "two calls for the same epoch give different orders");
  return "another order for each epoch and seed";
}

}  // namespace

std::vector<Check> checks(const std::string&, const std::string&) {
  print_task(text("up to ", sizes().back(), " samples, seed ", seed()));
  return {{"every sample once", check_coverage}, {"equal shares", check_balance}, {"shuffled by epoch", check_shuffle}};
}

}  // namespace grader
