// Random models in every mode, on threads; and the combinations that the documentation promises.
#include <algorithm>
#include <fstream>
#include <map>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "tests/parallel/delayed/late_backend.h"
#include "tests/parallel/step/random_training.h"

using namespace random_case;

namespace {

using Predicate = bool (*)(const Case& of);

bool has(const Case& of, Block block) { return std::ranges::find(of.blocks, block) != of.blocks.end(); }

// The rows of the table of docs/parallel.md.
const std::map<std::string, Predicate>& promises() {
  static const std::map<std::string, Predicate> all = {
      {"`backward(x, y, loss_fn)`", [](const Case& of) { return of.call == Call::kBackward; }},
      {"`run(x)` and `loss.backward()`", [](const Case& of) { return of.call == Call::kOperator; }},
      {"two micro-batches per rank", [](const Case& of) { return of.per_rank() == 2; }},
      {"micro-batches of different sizes", [](const Case& of) { return of.samples == Samples::kUneven; }},
      {"`Weighting::kSamples`", [](const Case& of) { return of.weighting == Weighting::kSamples; }},
      {"a rank without samples",
       [](const Case& of) { return of.samples == Samples::kFirstEmpty || of.samples == Samples::kLastEmpty; }},
      {"`join`", [](const Case& of) { return of.samples == Samples::kJoinDivided; }},
      {"`join` with `.divide_by_initial_world_size = false`",
       [](const Case& of) { return of.samples == Samples::kJoin; }},
      {"a block that some micro-batches skip", [](const Case& of) { return of.skip != Skip::kNone; }},
      {"`autograd::checkpoint` around each block", [](const Case& of) { return of.recompute == Recompute::kBlocks; }},
      {"`autograd::checkpoint` around several blocks",
       [](const Case& of) { return of.recompute == Recompute::kSegments; }},
      {"units inside units", [](const Case& of) { return of.units == Units::kNested; }},
      {"one unit for all blocks", [](const Case& of) { return of.units == Units::kOne; }},
      {"a weight of two modules (tied)", [](const Case& of) { return of.sharing == Sharing::kTied; }},
      {"a weight that another module reads", [](const Case& of) { return of.sharing == Sharing::kBorrowed; }},
      {"a block that is called twice", [](const Case& of) { return of.sharing == Sharing::kTwice; }},
      {"frozen parameters", [](const Case& of) { return has(of, Block::kFrozen) || has(of, Block::kHalfFrozen); }},
      {"unused parameters", [](const Case& of) { return has(of, Block::kUnused); }},
      {"BatchNorm, whose buffers change", [](const Case& of) { return has(of, Block::kBatchNorm); }},
      {"BatchNorm with `.all_micro_batches`",
       [](const Case& of) {
         for (std::size_t i = 1; i < of.blocks.size(); i += 2) {
           if (of.blocks[i] == Block::kBatchNorm) return true;
         }
         return false;
       }},
      {"clipping by the norm", [](const Case& of) { return of.update == Update::kClippedAdam; }},
      {"f64", [](const Case& of) { return of.precision == Precision::kF64; }},
      {"`par::save_checkpoint` and `par::load_checkpoint`",
       [](const Case& of) { return of.between == Between::kSaved; }},
      {"a device other than `cpu:0`", [](const Case& of) { return of.place != Place::kHost; }},
      {"`.offload_optimizer`", [](const Case& of) { return of.place == Place::kOffloaded; }}};
  return all;
}

// The rows of the table, each with its cells.
std::vector<std::vector<std::string>> promised() {
  std::ifstream file(LOCKSTEP_GOLDEN_DIR "/../../docs/parallel.md");
  std::vector<std::vector<std::string>> rows;
  bool is_table = false;
  for (std::string line; std::getline(file, line);) {
    if (contains(line, "| | `DistributedDataParallel` | stage 1 |")) is_table = true;
    if (is_table && line.empty()) break;
    if (!is_table || contains(line, "`DistributedDataParallel`") || contains(line, "|---|")) continue;
    std::vector<std::string>& cells = rows.emplace_back();
    std::istringstream text(line.substr(2));
    for (std::string cell; std::getline(text, cell, '|');)
      cells.push_back(cell.substr(0, cell.find_last_not_of(' ') + 1));
  }
  return rows;
}

// The cases of a backend.
std::vector<Case> cases_from(std::uint32_t first, std::uint32_t count) {
  std::vector<Case> cases;
  for (int ranks = 2; ranks <= 4; ++ranks) {
    for (std::uint32_t number = first; number < first + count; ++number) cases.push_back(draw(number, ranks));
  }
  return cases;
}

// Counts the different pairs of an option's value with another option's value.
std::size_t count_pairs(const std::vector<Case>& cases) {
  constexpr std::size_t kMost = 16;  // options, and values of each
  std::vector<char> seen(kMost * kMost * kMost * kMost, 0);
  for (const Case& of : cases) {
    const std::vector<int> all = of.values();
    REQUIRE((all.size() <= kMost && std::ranges::max(all) < static_cast<int>(kMost)));
    for (std::size_t i = 0; i < all.size(); ++i) {
      const std::size_t first = i * kMost + static_cast<std::size_t>(all[i]);
      for (std::size_t j = i + 1; j < all.size(); ++j)
        seen[(first * kMost + j) * kMost + static_cast<std::size_t>(all[j])] = 1;
    }
  }
  return static_cast<std::size_t>(std::ranges::count(seen, 1));
}

}  // namespace

TEST_CASE("random models: all modes have the bits of one process, on threads") {
  for (const int ranks : {2, 3, 4})
    with_threads("local", ranks, [](const Group& group) { check_cases(group, kLocalFirst, kCases); });
}

TEST_CASE("random models: all modes have the bits of one process where messages are late" *
          doctest::skip(!late_backend())) {
  const std::uint32_t count = late_backend() == std::string("mpi") ? kCases : kSlowCases;
  for (const int ranks : {2, 3, 4})
    with_threads(late_backend(), ranks, [&](const Group& group) { check_cases(group, kLateFirst, count); },
                 {.reduction = ls::parallel::Reduction::kCanonical});
}

TEST_CASE("the random cases of a backend have every pair of options that can be drawn") {
  const std::size_t possible = count_pairs(cases_from(0, 20'000 / LOCKSTEP_SLOWDOWN));
  for (const std::uint32_t first : {kShmFirst, kLocalFirst, kLateFirst})
    CHECK(count_pairs(cases_from(first, kCases)) == possible);
}

TEST_CASE("every combination that the documentation promises is one of the random cases of each backend") {
  const std::vector<std::vector<std::string>> rows = promised();
  CHECK(rows.size() == promises().size());
  const std::pair<std::uint32_t, std::uint32_t> backends[] = {
      {kShmFirst, kCases}, {kLocalFirst, kCases}, {kGlooFirst, kSlowCases}, {kMpiFirst, kMpiCases}};
  for (const auto& backend : backends) {
    const std::uint32_t first = backend.first, count = backend.second;
    const std::vector<Case> cases = cases_from(first, count);
    for (const std::vector<std::string>& cells : rows) {
      INFO("the row \"" << cells[0] << "\", cases from " << first);
      REQUIRE(cells.size() == static_cast<std::size_t>(Mode::kCount) + 1);
      REQUIRE(promises().contains(cells[0]));
      const Predicate promise = promises().at(cells[0]);
      for (int mode = 0; mode < static_cast<int>(Mode::kCount); ++mode) {
        const std::string& cell = cells[static_cast<std::size_t>(mode + 1)].substr(1);
        CAPTURE(mode);
        REQUIRE((cell == "yes" || cell == "-"));
        const auto runs = [&](const Case& of) { return of.mode == static_cast<Mode>(mode) && promise(of); };
        if (cell == "yes") CHECK(std::ranges::any_of(cases, runs));
      }
    }
  }
}
