// Exercise 14: a pipeline schedule, as a table in a file, with a short bubble and few micro-batches in flight. The library
// checks the table and runs it on a simulated clock.
#include <algorithm>
#include <optional>

#include "harness.h"

namespace grader {
namespace {

struct Variant {
  int ranks = 4, micro_batches = 8;
  double forward = 1, input = 1, weight = 1;

  par::ScheduleCosts costs() const { return {.forward = forward, .backward_input = input, .backward_weight = weight}; }
  double all() const { return forward + input + weight; }
  double one_f_one_b() const { return (micro_batches + ranks - 1) * all(); }
  double bound() const { return micro_batches * all() + (ranks - 1) * (forward + input - weight); }
};

// In all variants zb1p reaches the bound.
Variant variant_of(std::uint64_t seed) {
  if (seed == 0) return {};
  Dice dice(seed);
  const int micro_batches[] = {6, 7, 9, 10};
  Variant v{.ranks = 3 + dice.roll(3), .micro_batches = micro_batches[dice.roll(4)]};
  v.weight = 1 + dice.roll(3);
  v.forward = v.weight + dice.roll(3);
  v.input = v.weight + dice.roll(3);
  return v;
}

// A message of the library without the folder of the file, and without the table below it.
std::string shortened(const std::string& message, const std::string& file) {
  const std::size_t folder = message.starts_with(file) ? file.find_last_of('/') + 1 : 0;
  return message.substr(folder, message.find('\n') - folder);
}

par::ScheduleTable table_of(const std::string& file, const Variant& v) {
  std::optional<par::ScheduleTable> table;
  try {
    table = par::ScheduleTable::load(file);
  } catch (const ls::Error& error) {
    throw Missing(shortened(error.what(), file));
  }
  require(table->ranks() == v.ranks && table->stages() == v.ranks && table->micro_batches() == v.micro_batches,
          "the table has ", table->ranks(), " ranks, ", table->stages(), " stages and ", table->micro_batches(),
          " micro-batches, expected ", v.ranks, ", ", v.ranks, " and ", v.micro_batches,
          "; begin with the table that lockstep-explain schedule gpipe --csv writes");
  return *table;
}

// The first action of a rank after which it holds more micro-batches than `most`.
std::string too_much(const par::Timeline::Rank& rank, int most) {
  int held = 0;
  for (const par::Timeline::Timed& each : rank.actions) {
    if (each.action.kind == par::ActionKind::kForward && ++held > most) return each.action.to_string();
    if (each.action.kind == par::ActionKind::kBackward || each.action.kind == par::ActionKind::kBackwardWeight) --held;
  }
  return "";
}

std::string check_memory(const par::Timeline& timeline, const Variant& v) {
  int most = 0;
  for (std::size_t rank = 0; rank < timeline.ranks.size(); ++rank) {
    most = std::max(most, timeline.ranks[rank].in_flight);
    const std::string action = too_much(timeline.ranks[rank], v.ranks);
    require(action.empty(), "rank ", rank, " holds ", v.ranks + 1, " micro-batches from ", action, " on, allowed are ",
            v.ranks, "; before that forward, run the backward of an earlier micro-batch (B, or I and W)");
  }
  return text("at most ", most, " micro-batches are held");
}

// "rank 0 waits longest, from 4 to 10, before 0B0"
std::string longest_wait(const par::Timeline& timeline) {
  double longest = 0;
  std::string found;
  for (std::size_t rank = 0; rank < timeline.ranks.size(); ++rank) {
    double now = 0;
    for (const auto& [begin, end, action] : timeline.ranks[rank].actions) {
      if (now > 0 && begin - now > longest) {  // each rank waits for its first input
        longest = begin - now;
        found = text("rank ", rank, " waits longest, from ", now, " to ", begin, ", before ", action.to_string());
      }
      now = end;
    }
  }
  return found;
}

// Shorter tables count if they keep the bound of memory.
std::string check_step(const std::string& file, const Variant& v, double most, bool is_less) {
  const par::Timeline timeline = par::simulate(table_of(file, v), v.costs());
  check_memory(timeline, v);
  require(is_less ? timeline.seconds < most : timeline.seconds <= most, "the step takes ", timeline.seconds,
          is_less ? ", expected less than " : ", expected at most ", most, "; ", longest_wait(timeline));
  return text("the step takes ", timeline.seconds, ", the ranks are idle for ", 100 * timeline.idle, " %");
}

}  // namespace

std::vector<Check> checks(const std::string& file, const std::string&) {
  const Variant v = variant_of(seed_of());
  print_task(text(v.ranks, " ranks, ", v.micro_batches, " micro-batches, F ", v.forward, ", I ", v.input, ", W ",
                  v.weight, ", at most ", v.ranks, " micro-batches in flight, a step of at most ", v.bound()));
  return {{"in flight", [=] { return check_memory(par::simulate(table_of(file, v), v.costs()), v); }},
          {"as short as 1f1b", [=] { return check_step(file, v, v.one_f_one_b(), /*is_less=*/false); }},
          {"shorter than 1f1b", [=] { return check_step(file, v, v.one_f_one_b(), /*is_less=*/true); }},
          {"bubble", [=] { return check_step(file, v, v.bound(), /*is_less=*/false); }}};
}

}  // namespace grader
