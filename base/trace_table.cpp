#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <functional>
#include <map>
#include <unordered_map>
#include <utility>

#include "lockstep/base/trace.h"

namespace lockstep {
namespace {

struct Row {
  TraceKind kind;
  std::string name;
  std::int64_t calls = 0, total = 0, self = 0;  // ns
};

// Whether events of the kind lie inside others of their thread: a collective lasts from launch to completion, during other
// work.
bool is_nested(TraceKind kind) { return kind != TraceKind::kCollective && kind != TraceKind::kHops; }

std::vector<Row> rows_of(const Trace& trace) {
  std::vector<Row> rows;
  std::map<std::pair<TraceKind, std::string_view>, std::size_t> index;
  struct Open {
    std::int64_t end;
    std::size_t row;
  };
  std::unordered_map<int, std::vector<Open>> threads;  // of each, the events that have not ended, the innermost last
  for (const TraceEvent& event : trace.events) {
    if (event.end <= event.begin) continue;
    const auto [place, is_new] = index.try_emplace({event.kind, event.name}, rows.size());
    if (is_new) rows.push_back({.kind = event.kind, .name = event.name});
    const std::int64_t time = event.end - event.begin;
    Row& row = rows[place->second];
    ++row.calls;
    row.total += time;
    row.self += time;
    if (!is_nested(event.kind)) continue;
    std::vector<Open>& open = threads[event.thread];
    while (!open.empty() && open.back().end <= event.begin) open.pop_back();
    if (!open.empty() && event.end <= open.back().end) rows[open.back().row].self -= time;
    open.push_back({event.end, place->second});
  }
  return rows;
}

double ms(std::int64_t ns) { return static_cast<double>(ns) / 1e6; }

}  // namespace

std::string profile_table(const Trace& trace, std::size_t rows) {
  std::vector<Row> all = rows_of(trace);
  std::ranges::stable_sort(all, std::greater(), &Row::self);
  std::int64_t sum = 0;
  for (const Row& row : all) sum += is_nested(row.kind) ? row.self : 0;
  std::string text = fmt::format("{:<10} {:<28} {:>9} {:>7} {:>11} {:>11} {:>11}\n", "kind", "name", "self ms",
                                 "self %", "total ms", "calls", "mean us");
  for (const Row& row : all) {
    if (rows-- == 0) break;
    const bool nested = is_nested(row.kind);
    const double share = static_cast<double>(row.self) / static_cast<double>(sum);
    text += fmt::format("{:<10} {:<28} {:>9} {:>7} {:>11.3f} {:>11} {:>11.1f}\n", lockstep::name(row.kind), row.name,
                        nested ? fmt::format("{:.3f}", ms(row.self)) : "-",
                        nested ? fmt::format("{:.1f}", 100 * share) : "-", ms(row.total), row.calls,
                        1e3 * ms(row.total) / static_cast<double>(row.calls));
  }
  if (trace.dropped > 0)
    text += fmt::format("{} events are missing: full rings dropped them; raise .events_per_thread\n", trace.dropped);
  return text;
}

}  // namespace lockstep
