// Traces: what each thread did, from when to when, for a timeline of a few steps.
//
//   start_trace();
//   ... some steps ...
//   const Trace trace = stop_trace();
//   write_chrome_trace("trace.json", {trace});  // for chrome://tracing and ui.perfetto.dev
//
// While no trace runs a span costs one relaxed load. While one runs every thread writes to a ring of its own, without locks;
// a full ring loses its oldest events, and says how many. Ranks: parallel/comm/trace_ranks.h brings their traces together.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/tensor/error.h"

namespace lockstep {

// What kind of work an event is.
enum class TraceKind : std::uint8_t {
  kUser,       // what a program marks itself
  kStep,       // one training step, as the program sees it
  kReplica,    // a replica of DataParallel at work; id: its position in the list of devices
  kForward,    // a module's forward
  kBackward,   // a backward, and in it the operations
  kOptimizer,  // an optimizer's step
  kKernel,     // a kernel of a CPU device
  kCopy,       // between devices; from, to: positions in the list of devices
  // From its launch to its completion, as this rank sees it; id: its number; from: this rank. A send or a recv has the other
  // rank in `to`, and the number of the message between the two.
  kCollective,
  kWait,            // for other ranks or replicas; id: the collective's number; to: of a message, the other rank
  kBucketReady,     // moments; id: the bucket
  kBucketLaunched,  // ... the wait that ends at kBucketDone may be for this bucket or an earlier one
  kBucketDone,
  kHops,  // one step of a collective that goes by hops (parallel/simulate/hops.h); id: the step; from: the rank; bytes: that it sends
};
inline constexpr int kTraceKindCount = 14;  // how many there are
const char* name(TraceKind kind);           // "forward"

// What an event may say beside its name. -1: nothing.
struct TraceLabels {
  std::int64_t bytes = -1;  // of a copy, a bucket; of a collective those that this rank sends, by the books
  int from = -1, to = -1;   // the ends of a transfer
  std::int64_t id = -1;     // what it counts depends on the kind
  int phase = -1;           // parallel::Phase
  int group = 0;            // of a collective: 0, or a number that split groups have of their own
};

// One thing that a thread did.
struct TraceEvent {
  TraceKind kind = TraceKind::kUser;  // of work
  std::string name = {};              // at most 28 bytes of it
  int thread = 0;                     // numbered from 0 in the order of their first event
  std::int64_t begin = 0, end = 0;    // nanoseconds of the system's monotonic clock; of ranks, rank 0's
  TraceLabels labels = {};            // what it is about
};

// Of one process, or of one rank.
struct Trace {
  std::string process = {};          // "ddp rank 1"
  int rank = 0;                      // its place among the ranks; 0 for a process alone
  std::int64_t clock_offset = 0;     // ns that were added to this rank's times
  std::int64_t clock_error = 0;      // by so many ns at most they may be wrong, compared with rank 0's
  std::int64_t dropped = 0;          // events that found no room
  std::vector<TraceEvent> events{};  // by their begin; where two begin together the longer one first
};

// How much a trace keeps.
struct TraceOptions {
  std::size_t events_per_thread = std::size_t{1} << 15;  // 64 bytes each
  bool kernels = false;                                  // also the kernels of CPU devices: many events, each of 25 ns
};

// Starts one; events of an earlier one are forgotten. Throws InvalidArgument while another one runs, or for no events.
void start_trace(const TraceOptions& options = {});
// Ends it. Spans that are still open are left out. Throws InvalidArgument where none runs.
Trace stop_trace();
// One process of the file for each trace, in this order. Throws IoError.
void write_chrome_trace(const std::string& path, const std::vector<Trace>& traces);

namespace detail {
extern std::atomic<int> trace_level;  // 0: off, 1: on, 2: with kernels
std::uint64_t trace_clock() noexcept;
void end_trace_span(TraceKind kind, const char* name, std::size_t length, std::uint64_t begin) noexcept;
void add_trace_event(TraceKind kind, std::string_view name, std::uint64_t begin, std::uint64_t end,
                     const TraceLabels& labels) noexcept;
}  // namespace detail

// Whether a trace runs.
inline bool is_tracing() { return detail::trace_level.load(std::memory_order_relaxed) != 0; }

// A moment while a trace runs: the begin of an event whose labels are known only at its end.
class TraceTime {
 public:
  // The present moment, or no moment where no trace runs.
  static TraceTime now() { return TraceTime(is_tracing() ? detail::trace_clock() : 0); }
  TraceTime() = default;
  explicit operator bool() const { return ticks_ != 0; }  // whether a trace ran then
  std::uint64_t ticks() const { return ticks_; }          // of the trace's clock, in its own unit

 private:
  explicit TraceTime(std::uint64_t ticks) : ticks_(ticks) {}
  std::uint64_t ticks_ = 0;
};

// An event from `begin` until now. Nothing where no trace ran at `begin`.
inline void trace_event(TraceKind kind, std::string_view name, TraceTime begin, const TraceLabels& labels = {}) {
  if (begin) [[unlikely]]
    detail::add_trace_event(kind, name, begin.ticks(), detail::trace_clock(), labels);
}

// An event while it lives. `name` must live as long.
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
