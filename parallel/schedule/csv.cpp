// Tables as text: a line for each rank, cells separated by commas.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <string_view>

#include "lockstep/base/check_internal.h"
#include "lockstep/parallel/schedule/schedule_internal.h"

namespace lockstep::parallel {
namespace {

constexpr std::array<std::string_view, 9> kNames = {"F",      "I",      "W",      "B",          "SEND_F",
                                                    "RECV_F", "SEND_B", "RECV_B", "REDUCE_GRAD"};

// Larger tables are written without empty cells and padding.
constexpr double kMostCellsInSteps = 1 << 19;
static_assert(12 * kMostCellsInSteps <= kMaxScheduleBytes);  // 12: "131071F1023,"

// Removes a number from the front of `text`.
bool take_number(std::string_view& text, int& number) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || text.front() == '-') return false;
  text.remove_prefix(static_cast<std::size_t>(end - text.data()));
  return true;
}

bool parse_action(std::string_view text, ScheduleAction& action) {
  if (text.empty() || !take_number(text, action.stage)) return false;
  const std::size_t digits = text.find_first_of("0123456789");
  const auto found = std::ranges::find(kNames, text.substr(0, digits));
  if (found == kNames.end()) return false;
  action.kind = static_cast<ActionKind>(found - kNames.begin());
  if (action.kind == ActionKind::kReduce) return digits == std::string_view::npos;
  if (digits == std::string_view::npos) return false;
  text.remove_prefix(digits);
  return take_number(text, action.micro_batch) && text.empty();
}

std::string_view trimmed(std::string_view text) {
  const std::size_t first = text.find_first_not_of(" \t\r");
  if (first == std::string_view::npos) return {};
  return text.substr(first, text.find_last_not_of(" \t\r") - first + 1);
}

// The text before the next `separator`, which is removed from `rest` with it.
std::string_view next(std::string_view& rest, char separator) {
  const std::size_t end = std::min(rest.find(separator), rest.size());
  const std::string_view part = rest.substr(0, end);
  rest.remove_prefix(std::min(end + 1, rest.size()));
  return part;
}

std::string quoted(std::string_view text) {
  std::string shown(text.substr(0, 40));
  std::ranges::replace_if(
      shown, [](char c) { return c < ' ' || c > '~'; }, '?');
  return '"' + shown + '"';
}

}  // namespace

std::string ScheduleAction::to_string() const {
  const std::string text = fmt::format("{}{}", stage, kNames[static_cast<std::size_t>(kind)]);
  return kind == ActionKind::kReduce ? text : fmt::format("{}{}", text, micro_batch);
}

ScheduleRows parse_schedule(std::span<const std::byte> text, const std::string& name) {
  std::string_view rest(reinterpret_cast<const char*>(text.data()), text.size());
  ScheduleRows rows;
  while (!rest.empty()) {
    std::string_view line = next(rest, '\n');
    LOCKSTEP_CHECK_IO(rows.size() < kMaxScheduleRanks, "{}: more than {} lines; a line is a rank", name,
                      kMaxScheduleRanks);
    std::vector<ScheduleAction>& row = rows.emplace_back();
    for (int column = 1; !line.empty(); ++column) {
      const std::string_view cell = trimmed(next(line, ','));
      if (cell.empty()) continue;
      ScheduleAction action;
      LOCKSTEP_CHECK_IO(parse_action(cell, action),
                        "{}: line {}, column {}: {} is no action; expected stage, {} and micro-batch, as 0F3, or {}",
                        name, rows.size(), column, quoted(cell), fmt::join(kNames.begin(), kNames.end() - 1, ", "),
                        "0REDUCE_GRAD");
      row.push_back(action);
    }
  }
  while (!rows.empty() && rows.back().empty()) rows.pop_back();  // lines at the end of the file
  return rows;
}

std::string ScheduleTable::to_string() const {
  Timeline timeline;
  bool is_in_steps = !has_messages(rows_);
  std::size_t width = 0;  // of a cell
  if (is_in_steps) {
    timeline = run_table(*this, {{1, 1, 1, 1}}, {});
    is_in_steps = timeline.seconds * ranks() <= kMostCellsInSteps;
  }
  for (const std::vector<ScheduleAction>& row : rows_) {
    for (const ScheduleAction& action : row) width = is_in_steps ? std::max(width, action.to_string().size()) : 0;
  }
  std::string text;
  for (std::size_t rank = 0; rank < rows_.size(); ++rank) {
    double column = 0;
    for (std::size_t i = 0; i < rows_[rank].size(); ++i, ++column) {
      for (; is_in_steps && column < timeline.ranks[rank].actions[i].begin; ++column) text.append(width, ' ') += ',';
      text += fmt::format("{:<{}},", rows_[rank][i].to_string(), width);
    }
    text.resize(text.find_last_not_of(" ,") + 1);
    text += '\n';
  }
  return text;
}

}  // namespace lockstep::parallel
