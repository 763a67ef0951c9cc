#include "lockstep/parallel/comm/trace_ranks.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <cstring>
#include <limits>

#include "lockstep/base/check_internal.h"
#include "lockstep/tensor/ops/ops_internal.h"

namespace lockstep::parallel {
namespace {

constexpr int kMessages = 32;                  // round trips with each rank
constexpr std::int64_t kMostEvents = 1 << 22;  // per rank
constexpr std::int64_t kColumns = 16;          // per event: twelve numbers and its name
constexpr std::size_t kNameBytes = 4 * sizeof(std::int64_t);

std::int64_t now_ns() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

Tensor numbers(const Shape& shape) { return raw::empty(shape, {.dtype = kInt64}); }

struct Clock {
  std::int64_t offset = 0;  // rank 0's time minus this rank's
  std::int64_t error = 0;
};

// Called on ranks other than 0, while rank 0 calls `answer`.
Clock compare_clocks(ProcessGroup& group) {
  Clock best{.error = std::numeric_limits<std::int64_t>::max()};
  const Tensor message = numbers({1});
  for (int i = 0; i < kMessages; ++i) {
    const std::int64_t sent = now_ns();
    message.span<std::int64_t>()[0] = sent;
    group.send(message, 0)->wait();
    group.recv(message, 0)->wait();
    const std::int64_t received = now_ns(), there = message.span<std::int64_t>()[0];
    const std::int64_t half = (received - sent) / 2;
    if (half < best.error) best = {.offset = there - (sent + half), .error = half};
  }
  return best;
}

void answer(ProcessGroup& group, int rank) {
  const Tensor message = numbers({1});
  for (int i = 0; i < kMessages; ++i) {
    group.recv(message, rank)->wait();
    message.span<std::int64_t>()[0] = now_ns();
    group.send(message, rank)->wait();
  }
}

Clock find_clock(ProcessGroup& group) {
  if (group.rank() != 0) return compare_clocks(group);
  for (int r = 1; r < group.size(); ++r) answer(group, r);
  return {};
}

using Row = std::span<std::int64_t, kColumns>;

void pack(const TraceEvent& event, Row row) {
  const TraceLabels& labels = event.labels;
  const std::array<std::int64_t, 12> fixed = {static_cast<std::int64_t>(event.kind),
                                              event.thread,
                                              event.begin,
                                              event.end,
                                              labels.bytes,
                                              labels.from,
                                              labels.to,
                                              labels.id,
                                              labels.phase,
                                              labels.group,
                                              labels.stage,
                                              labels.micro_batch};
  std::ranges::copy(fixed, row.begin());
  char text[kNameBytes] = {};
  event.name.copy(text, kNameBytes);
  std::memcpy(&row[fixed.size()], text, kNameBytes);
}

// Wraps around on overflow: another rank may have written any number.
std::int64_t shifted(std::int64_t time, std::int64_t offset) {
  return static_cast<std::int64_t>(static_cast<std::uint64_t>(time) + static_cast<std::uint64_t>(offset));
}

// Reads an event written by another rank. Only the kind can be invalid.
TraceEvent unpack(Row row, const Clock& clock, int rank) {
  if (row[0] < 0 || row[0] >= kTraceKindCount)
    throw CommError(fmt::format("gather_traces: rank {} sent an event of kind {}, expected 0 to {}", rank, row[0],
                                kTraceKindCount - 1));
  char text[kNameBytes];
  std::memcpy(text, &row[12], kNameBytes);
  const auto small = [&](std::size_t at) { return static_cast<int>(row[at]); };
  return {.kind = static_cast<TraceKind>(row[0]),
          .name = std::string(text, strnlen(text, kNameBytes)),
          .thread = small(1),
          .begin = shifted(row[2], clock.offset),
          .end = shifted(row[3], clock.offset),
          .labels = {.bytes = row[4],
                     .from = small(5),
                     .to = small(6),
                     .id = row[7],
                     .phase = small(8),
                     .group = small(9),
                     .stage = small(10),
                     .micro_batch = small(11)}};
}

}  // namespace

std::vector<Trace> gather_traces(ProcessGroup& group, const Trace& trace) {
  const auto events = static_cast<std::int64_t>(trace.events.size());
  LOCKSTEP_CHECK(events <= kMostEvents,
                 "gather_traces: this rank has {} events, expected at most {}; trace fewer steps", events, kMostEvents);
  const Clock clock = find_clock(group);
  const std::int64_t own[4] = {events, trace.dropped, clock.offset, clock.error};
  const Tensor heads = numbers({group.size(), 4});
  group.all_gather(heads, raw::from_bytes(own, {4}, kInt64))->wait();
  const auto head = [&](int rank, int at) {
    return heads.span<std::int64_t>()[static_cast<std::size_t>(4 * rank + at)];
  };
  std::int64_t most = 1;
  for (int r = 0; r < group.size(); ++r) {
    if (head(r, 0) < 0 || head(r, 0) > kMostEvents)
      throw CommError(
          fmt::format("gather_traces: rank {} has {} events, expected 0 to {}", r, head(r, 0), kMostEvents));
    most = std::max(most, head(r, 0));
  }

  const Tensor packed = raw::zeros({most, kColumns}, {.dtype = kInt64});
  for (std::int64_t i = 0; i < events; ++i)
    pack(trace.events[static_cast<std::size_t>(i)],
         Row(&packed.span<std::int64_t>()[static_cast<std::size_t>(i * kColumns)], kColumns));
  std::vector<Tensor> all;
  for (int r = 0; r < group.size() && group.rank() == 0; ++r) all.push_back(numbers({most, kColumns}));
  group.gather(all, packed, 0)->wait();

  std::vector<Trace> traces;
  for (int r = 0; r < static_cast<int>(all.size()); ++r) {
    const Clock other{.offset = head(r, 2), .error = head(r, 3)};
    Trace& out = traces.emplace_back(Trace{.process = fmt::format("rank {}", r),
                                           .rank = r,
                                           .clock_offset = other.offset,
                                           .clock_error = other.error,
                                           .dropped = head(r, 1)});
    const std::span<std::int64_t> rows = all[static_cast<std::size_t>(r)].span<std::int64_t>();
    for (std::int64_t i = 0; i < head(r, 0); ++i)
      out.events.push_back(unpack(Row(&rows[static_cast<std::size_t>(i * kColumns)], kColumns), other, r));
  }
  return traces;
}

}  // namespace lockstep::parallel
