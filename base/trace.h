/// \file
/// Traces: a timeline of each thread's work over a few steps.
///
///     start_trace();
///     ... some steps ...
///     const Trace trace = stop_trace();
///     write_chrome_trace("trace.json", {trace});  // for chrome://tracing and ui.perfetto.dev
///     std::cout << profile_table(trace);          // where the time went
///
/// While no trace runs, a span costs one relaxed load. During a trace every thread writes to its own ring, without
/// locks; a full ring drops its oldest events and counts them. parallel/comm/trace_ranks.h merges the traces of all
/// ranks.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "lockstep/base/device.h"
#include "lockstep/base/error.h"

namespace lockstep {

/// The kind of work of an event.
enum class TraceKind : std::uint8_t {
  kUser,       ///< an event of the program's own
  kStep,       ///< one training step of the program
  kReplica,    ///< work of a DataParallel replica; id: its position in the list of devices
  kForward,    ///< a module's forward
  kBackward,   ///< a backward, and each operation in it
  kOptimizer,  ///< an optimizer's step
  kKernel,     ///< a kernel of a CPU device
  /// A copy between devices; from, to: positions in the list of devices. Also a gather of a unit of
  /// ShardedDataParallel by copies from other ranks; from: this rank; id: the unit.
  kCopy,
  /// From launch to completion on this rank; id: its number; from: this rank. A send or a recv has the other rank in
  /// `to`, and as id the number of the message between the two ranks.
  kCollective,
  kWait,            ///< for other ranks or replicas; id: the collective's number; to: the other rank of a message
  kBucketReady,     ///< no duration; id: the bucket
  kBucketLaunched,  ///< likewise; the wait that ends at kBucketDone may be for an earlier bucket
  kBucketDone,
  kHops,  ///< one step of a simulated collective (parallel/simulate/hops.h); id: the step; from: the sender; bytes: sent
  kMemory,  ///< no duration: what trace_memory records
  kPlan,    ///< no duration: a value of ShardedDataParallel::plan; bytes: the value
  /// An action of a pipeline's schedule, with its name in the table, as 0F3; id: the row. Receives include the wait.
  /// REDUCE_GRAD starts the reductions of the stage's gradients.
  kAction,
};
inline constexpr int kTraceKindCount = 17;  ///< number of kinds
const char* name(TraceKind kind);           ///< "forward"

inline constexpr std::size_t kTraceNameLength = 28;  ///< bytes of an event's name; longer names are cut off

/// Optional labels of an event. -1: not set.
struct TraceLabels {
  std::int64_t bytes = -1;  ///< of a copy or a bucket; of a collective, as recorded by this rank's traffic counters
  int from = -1, to = -1;   ///< the ends of a transfer
  std::int64_t id = -1;     ///< see TraceKind
  int phase = -1;           ///< parallel::Phase
  int group = 0;            ///< of a collective: 0, or the number of the split group
  int stage = -1;           ///< of an action; rank stage % ranks of the pipeline has it as chunk stage / ranks
  int micro_batch = -1;     ///< of an action; an action has no bytes
};

/// One event of a thread.
struct TraceEvent {
  TraceKind kind = TraceKind::kUser;  ///< the kind of work
  std::string name = {};              ///< at most kTraceNameLength bytes
  int thread = 0;                     ///< threads are numbered from 0 in the order of their first event
  std::int64_t begin = 0, end = 0;    ///< nanoseconds of the system's monotonic clock, rank 0's in a merged trace
  TraceLabels labels = {};            ///< what the event refers to
};

/// The trace of one process or one rank.
struct Trace {
  std::string process = {};          ///< "ddp rank 1"
  int rank = 0;                      ///< 0 for a single process
  std::int64_t clock_offset = 0;     ///< ns that were added to this rank's times
  std::int64_t clock_error = 0;      ///< bound of the remaining error relative to rank 0's clock, ns
  std::int64_t dropped = 0;          ///< number of events that a full ring dropped
  std::vector<TraceEvent> events{};  ///< sorted by begin; of equal begins the longer event first
  /// Facts about the run, which write_chrome_trace stores and `lockstep-explain report` shows: {"parameter_hash",
  /// "1f0c..."}. docs/traces.md lists the names that the report knows.
  std::vector<std::pair<std::string, std::string>> notes{};
};

/// Options of start_trace.
struct TraceOptions {
  std::size_t events_per_thread = std::size_t{1} << 15;  ///< 64 bytes each
  bool kernels = false;  ///< also record kernels of CPU devices: many events, 25 ns each
};

/// Starts a trace and drops the events of an earlier one. Throws InvalidArgument if a trace runs, or for 0 events.
void start_trace(const TraceOptions& options = {});
/// Ends the trace. Spans that are still open are left out. Throws InvalidArgument if no trace runs.
Trace stop_trace();
/// Writes one process for each trace, in this order. Throws IoError.
void write_chrome_trace(const std::string& path, const std::vector<Trace>& traces);
/// A profile as a table, as PyTorch's key_averages().table(): a line for each kind and name of events, with their number,
/// their total time, and the time in which no other event runs inside them on their thread ("self"). The `rows` lines with
/// the longest such time. Collectives last from launch to completion, during other work, so they have no time of their own.
/// Operations of forward are in the table only if the trace has kernels. For CUDA, times are those of the host.
std::string profile_table(const Trace& trace, std::size_t rows = 20);

namespace detail {
extern std::atomic<int> trace_level;  // 0: off, 1: on, 2: with kernels
std::uint64_t trace_clock() noexcept;
void end_trace_span(TraceKind kind, const char* name, std::size_t length, std::uint64_t begin) noexcept;
void add_trace_event(TraceKind kind, std::string_view name, std::uint64_t begin, std::uint64_t end,
                     const TraceLabels& labels) noexcept;
}  // namespace detail

/// True while a trace runs.
inline bool is_tracing() { return detail::trace_level.load(std::memory_order_relaxed) != 0; }

/// A time during a trace: the begin of an event whose labels are known only at its end.
class TraceTime {
 public:
  /// The current time; empty if no trace runs.
  static TraceTime now() { return TraceTime(is_tracing() ? detail::trace_clock() : 0); }
  TraceTime() = default;
  explicit operator bool() const { return ticks_ != 0; }  ///< false: no trace ran at that time
  std::uint64_t ticks() const { return ticks_; }          ///< of the trace's clock, in its own unit

 private:
  explicit TraceTime(std::uint64_t ticks) : ticks_(ticks) {}
  std::uint64_t ticks_ = 0;
};

/// Records an event from `begin` until now. Does nothing if no trace ran at `begin`.
inline void trace_event(TraceKind kind, std::string_view name, TraceTime begin, const TraceLabels& labels = {}) {
  if (begin) [[unlikely]]
    detail::add_trace_event(kind, name, begin.ticks(), detail::trace_clock(), labels);
}

/// Records an event for its own lifetime. `name` must outlive it.
class TraceSpan {
 public:
  TraceSpan(TraceKind kind, std::string_view name) : begin_(TraceTime::now()), kind_(kind), name_(name) {}
  ~TraceSpan() {
    if (begin_) [[unlikely]]
      detail::end_trace_span(kind_, name_.data(), name_.size(), begin_.ticks());
  }
  TraceSpan(const TraceSpan&) = delete;
  TraceSpan& operator=(const TraceSpan&) = delete;

 private:
  TraceTime begin_;
  TraceKind kind_;
  std::string_view name_;
};

}  // namespace lockstep
