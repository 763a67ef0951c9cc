// Exercise 6: every row once, for any number of ranks.
#include "harness.h"

namespace grader {
namespace {

using Rows = std::vector<std::int64_t>;
constexpr std::int64_t kSeed = 7;

std::string check_coverage() {
  for (const std::int64_t n : {0, 1, 7, 60, 61}) {
    for (int world = 1; world <= 9; ++world) {
      std::vector<int> visits(static_cast<std::size_t>(n), 0);
      for (int rank = 0; rank < world; ++rank) {
        for (const std::int64_t row : exercises::rows_of_rank(n, world, rank, 0, kSeed)) {
          require(row >= 0 && row < n, n, " rows, ", world, " ranks: rank ", rank, " visits row ", row);
          ++visits[static_cast<std::size_t>(row)];
        }
      }
      for (std::int64_t row = 0; row < n; ++row) {
        const int times = visits[static_cast<std::size_t>(row)];
        require(times == 1, n, " rows, ", world, " ranks: row ", row, " is visited ", times, " times");
      }
    }
  }
  return "0 to 61 rows, 1 to 9 ranks";
}

std::string check_balance() {
  for (const std::int64_t n : {7, 60, 61}) {
    for (int world = 1; world <= 9; ++world) {
      for (int rank = 0; rank < world; ++rank) {
        const auto size = std::ssize(exercises::rows_of_rank(n, world, rank, 0, kSeed));
        require(size == n / world || size == (n + world - 1) / world, n, " rows, ", world, " ranks: rank ", rank,
                " has ", size, ", expected ", n / world, " or one more");
      }
    }
  }
  return "shares differ by a row at most";
}

std::string check_shuffle() {
  const auto rows = [](std::int64_t epoch, std::int64_t seed) {
    return exercises::rows_of_rank(60, 1, 0, epoch, seed);
  };
  Rows plain(60);
  for (std::size_t i = 0; i < plain.size(); ++i) plain[i] = static_cast<std::int64_t>(i);
  require(rows(0, kSeed) != plain, "the rows of epoch 0 are in the order of the data");
  require(rows(0, kSeed) != rows(1, kSeed), "epochs 0 and 1 have the same order");
  require(rows(0, kSeed) != rows(0, kSeed + 1), "two seeds give the same order");
  require(rows(3, kSeed) == rows(3, kSeed), "two calls for the same epoch give different orders");
  return "another order for each epoch and seed";
}

}  // namespace

std::vector<Check> checks(const std::string&, const std::string&) {
  return {{"every row once", check_coverage}, {"equal shares", check_balance}, {"shuffled by epoch", check_shuffle}};
}

}  // namespace grader
