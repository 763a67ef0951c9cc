// Reads any text as a table of a pipeline schedule: the result is a table that runs to its end and is the same after it
// was written, or an error with a text of bounded size.
#include <cstdint>
#include <cstdlib>
#include <span>
#include <string>
#include <utility>

#include "lockstep/base/error.h"
#include "lockstep/parallel/schedule/schedule_internal.h"
#include "tests/fuzz/watched_input.h"

namespace ls = lockstep;
namespace par = lockstep::parallel;

void fuzz_input(const std::uint8_t* data, std::size_t size) {
  try {
    const par::ScheduleTable table(par::parse_schedule(std::as_bytes(std::span(data, size)), "fuzz"));
    const std::string text = table.to_string();
    if (par::ScheduleTable(par::parse_schedule(std::as_bytes(std::span(text)), "again")) != table) std::abort();
    const par::Timeline timeline = par::simulate(table, {.link = {.latency = 1, .transfer = 1}});
    for (const par::Timeline::Rank& rank : timeline.ranks) {
      if (rank.held.empty() || rank.held.back().activations != 0) std::abort();
    }
  } catch (const ls::Error& error) {
    if (std::string(error.what()).size() > 4000) std::abort();
  }
}
