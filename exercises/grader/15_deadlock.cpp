// Exercise 15: a schedule in which no rank can go on: the actions at which the ranks stop, and a table without deadlock.
#include <algorithm>
#include <fstream>
#include <optional>
#include <utility>

#include "harness.h"

namespace grader {
namespace {

using Rows = std::vector<std::vector<par::ScheduleAction>>;

// The given table is 1F1B, but rank `rank` runs two more forwards before the backward of `micro_batch`.
struct Variant {
  int ranks = 3, micro_batches = 6;
  int rank = 1, micro_batch = 1;
};

Variant variant_of(std::uint64_t seed) {
  if (seed == 0) return {};
  Dice dice(seed);
  constexpr std::pair<int, int> kPlaces[] = {{1, 0}, {1, 2}, {2, 0}, {2, 1}, {2, 2}};  // not that of seed 0
  const auto& [rank, micro_batch] = kPlaces[dice.roll(5)];
  return {.micro_batches = 7, .rank = rank, .micro_batch = micro_batch};
}

Rows rows_of(const par::ScheduleTable& table) {
  Rows rows;
  for (int rank = 0; rank < table.ranks(); ++rank) rows.push_back(table.actions(rank));
  return rows;
}

Rows given(const Variant& v) {
  Rows rows = rows_of(par::ScheduleTable::make(par::Schedule::k1F1B, v.ranks, v.micro_batches));
  auto& row = rows[static_cast<std::size_t>(v.rank)];
  for (int forward : {v.ranks - v.rank + v.micro_batch, v.ranks - v.rank + v.micro_batch + 1}) {
    const auto at = std::ranges::find(row, par::ScheduleAction{par::ActionKind::kForward, v.rank, forward});
    const auto backward =
        std::ranges::find(row, par::ScheduleAction{par::ActionKind::kBackward, v.rank, v.micro_batch});
    std::rotate(backward, at, at + 1);
  }
  return rows;
}

std::string row_text(const std::vector<par::ScheduleAction>& row) {
  std::string line;
  for (const par::ScheduleAction& action : row) line += (line.empty() ? "" : ",") + action.to_string();
  return line;
}

// The action of another rank that this one needs.
std::optional<par::ScheduleAction> needed_by(const par::ScheduleAction& action, int ranks) {
  const bool is_forward = action.kind == par::ActionKind::kForward;
  const int stage = action.stage + (is_forward ? -1 : 1);
  if (stage < 0 || stage == ranks) return std::nullopt;
  return par::ScheduleAction{action.kind, stage, action.micro_batch};
}

// Runs the rows until no rank can go on, and returns the action at which each rank stops.
std::vector<par::ScheduleAction> stops_of(const Rows& rows) {
  std::vector<std::size_t> at(rows.size(), 0);
  const auto has_run = [&](const par::ScheduleAction& action) {
    const auto rank = static_cast<std::size_t>(action.stage);
    const auto end = rows[rank].begin() + static_cast<std::ptrdiff_t>(at[rank]);
    return std::find(rows[rank].begin(), end, action) != end;
  };
  for (bool moves = true; moves;) {
    moves = false;
    for (std::size_t rank = 0; rank < rows.size(); ++rank) {
      if (at[rank] == rows[rank].size()) continue;
      const auto needed = needed_by(rows[rank][at[rank]], static_cast<int>(rows.size()));
      if (needed && !has_run(*needed)) continue;
      ++at[rank];
      moves = true;
    }
  }
  std::vector<par::ScheduleAction> stops;
  for (std::size_t rank = 0; rank < rows.size(); ++rank) stops.push_back(rows[rank].at(at[rank]));
  return stops;
}

std::string check_stop(const Answers& answers, int rank, const par::ScheduleAction& stop, int ranks) {
  const std::string stops = answers.word(text("rank_", rank, "_stops_at")),
                    needs = answers.word(text("rank_", rank, "_needs"));
  require(stops == stop.to_string(), "rank ", rank, " does not stop at ", stops,
          "; write down which actions run, row by row, until each rank needs an action that has not run");
  require(needs == needed_by(stop, ranks)->to_string(), stops, " does not wait for ", needs, "; F needs F of the ",
          "stage before, B needs B of the stage after");
  return text(stops, " waits for ", needs);
}

// The table of the answers: its rows as a file, which the library reads and checks.
par::ScheduleTable corrected(const Answers& answers, const Variant& v, const std::string& out) {
  const std::string file = out + "/corrected.csv";
  std::ofstream lines(file);
  for (int rank = 0; rank < v.ranks; ++rank) lines << answers.word(text("rank_", rank)) << '\n';
  lines.close();
  std::optional<par::ScheduleTable> table;
  try {
    table = par::ScheduleTable::load(file);
  } catch (const ls::Error& error) {
    const std::string message = error.what();
    const std::size_t name = message.find("corrected.csv");
    throw Missing(message.substr(name == std::string::npos ? 0 : name, message.find('\n') - name));
  }
  require(table->ranks() == v.ranks && table->micro_batches() == v.micro_batches, "the table has ", table->ranks(),
          " ranks and ", table->micro_batches(), " micro-batches, expected ", v.ranks, " and ", v.micro_batches);
  return *table;
}

std::string check_memory(const par::Timeline& timeline, const Variant& v) {
  for (int rank = 0; rank < v.ranks; ++rank) {
    const int held = timeline.ranks[static_cast<std::size_t>(rank)].in_flight;
    require(held <= v.ranks - rank, "rank ", rank, " holds ", held, " micro-batches, 1F1B holds ", v.ranks - rank,
            "; which forward can run later?");
  }
  return "each rank holds as little as in 1F1B";
}

}  // namespace

std::vector<Check> checks(const std::string& file, const std::string& out) {
  const auto answers = std::make_shared<Answers>(file);
  const Variant v = variant_of(seed_of(answers.get()));
  const Rows rows = given(v);
  std::string task;
  for (std::size_t rank = 0; rank < rows.size(); ++rank)
    task += text(rank == 0 ? "" : "; ", "rank ", rank, ": ", row_text(rows[rank]));
  print_task(task);
  const std::vector<par::ScheduleAction> stops = stops_of(rows);
  std::vector<Check> all;
  for (int rank = 0; rank < v.ranks; ++rank) {
    all.push_back({text("rank ", rank, " stops"),
                   [=] { return check_stop(*answers, rank, stops[static_cast<std::size_t>(rank)], v.ranks); }});
  }
  all.push_back({"no deadlock", [=] {
                   corrected(*answers, v, out);
                   return std::string("all actions run");
                 }});
  all.push_back({"step", [=] {
                   const par::Timeline timeline = par::simulate(corrected(*answers, v, out), {});
                   const double most = 3.0 * (v.micro_batches + v.ranks - 1);
                   require(timeline.seconds <= most, "the step takes ", timeline.seconds, ", expected at most ", most);
                   return check_memory(timeline, v);
                 }});
  return all;
}

}  // namespace grader
