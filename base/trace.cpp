#include "lockstep/base/trace.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <memory>
#include <mutex>

#include "lockstep/base/check_internal.h"

#if defined(__x86_64__)
#include <cpuid.h>
#endif

namespace lockstep {

namespace detail {
constinit std::atomic<int> trace_level{0};
}

namespace {

// An event as stored in a ring.
struct Packed {
  std::uint64_t begin, end;  // ticks of the clock
  std::int64_t bytes;        // of an action: its stage and micro-batch
  std::int32_t id;
  std::uint16_t group;
  std::int16_t from, to;
  std::int8_t phase;
  TraceKind kind;
  char name[kTraceNameLength];  // not terminated if it fills the array
};
constexpr std::size_t kWords = 8;
static_assert(sizeof(Packed) == kWords * 8);

// The events of one thread, its only writer. Words are atomic, so that a reader during a write gets a torn event,
// which it detects by `head_`, instead of a data race; on x86 atomic words cost nothing.
class Ring {
 public:
  Ring(std::size_t capacity, int thread)
      : capacity_(capacity), thread_(thread), records_(std::make_unique<Record[]>(capacity + 1)) {}

  int thread() const { return thread_; }

  void push(const Packed& event) {
    std::uint64_t words[kWords];
    std::memcpy(words, &event, sizeof(event));
    const std::uint64_t head = head_.load(std::memory_order_relaxed);
    Record& record = records_[head % (capacity_ + 1)];
    for (std::size_t w = 0; w < kWords; ++w) record.words[w].store(words[w], std::memory_order_release);
    head_.store(head + 1, std::memory_order_release);
  }

  // Calls body(event) for all events that are left, and returns the number of lost ones.
  template <class Body>
  std::int64_t read(Body body) const {
    const std::uint64_t head = head_.load(std::memory_order_acquire);
    const std::uint64_t first = head > capacity_ ? head - capacity_ : 0;
    std::uint64_t lost = first;
    for (std::uint64_t i = first; i < head; ++i) {
      std::uint64_t words[kWords];
      for (std::size_t w = 0; w < kWords; ++w)
        words[w] = records_[i % (capacity_ + 1)].words[w].load(std::memory_order_acquire);
      if (head_.load(std::memory_order_relaxed) - i > capacity_) {  // the slot is being overwritten
        ++lost;
        continue;
      }
      Packed event;
      std::memcpy(&event, words, sizeof(event));
      body(event);
    }
    return static_cast<std::int64_t>(lost);
  }

 private:
  struct Record {
    std::atomic<std::uint64_t> words[kWords];
  };
  const std::size_t capacity_;
  const int thread_;
  const std::unique_ptr<Record[]> records_;
  std::atomic<std::uint64_t> head_{0};
};

// A time on both clocks: events are stamped by the cheaper clock and reported in the system's.
struct Moment {
  std::uint64_t ticks = 0;
  std::int64_t ns = 0;
};

struct Rings {
  std::mutex mutex;
  TraceOptions options;
  Moment begin;
  std::vector<std::shared_ptr<Ring>> all;
  std::vector<std::shared_ptr<Ring>> free;  // rings of threads that have ended
};

Rings& rings() {
  static Rings instance;
  return instance;
}

// The number of the current trace; a thread whose ring belongs to another trace gets a new ring.
constinit std::atomic<std::uint32_t> current{0};

// No constructor and no destructor: usable until a thread's very end.
constexpr std::uint32_t kEnded = ~std::uint32_t{0};
constinit thread_local Ring* own = nullptr;
constinit thread_local std::uint32_t own_trace = 0;

// Owns the thread's ring, and releases it for reuse when the thread ends.
struct Owner {
  ~Owner() {
    const std::lock_guard lock(rings().mutex);
    if (own_trace == current.load(std::memory_order_relaxed) && ring) rings().free.push_back(std::move(ring));
    own = nullptr;
    own_trace = kEnded;
  }
  std::shared_ptr<Ring> ring;
};

// Gives this thread a ring of the current trace. Null if the thread is about to end.
[[gnu::noinline]] Ring* new_ring() {
  if (own_trace == kEnded) return nullptr;
  thread_local Owner owner;
  Rings& shared = rings();
  const std::lock_guard lock(shared.mutex);
  if (!shared.free.empty()) {
    owner.ring = std::move(shared.free.back());
    shared.free.pop_back();
  } else {
    const int number = static_cast<int>(shared.all.size());
    owner.ring = std::make_shared<Ring>(shared.options.events_per_thread, number);
    shared.all.push_back(owner.ring);
  }
  own = owner.ring.get();
  own_trace = current.load(std::memory_order_relaxed);
  return own;
}

// True if the processor's counter runs at one constant rate on all cores.
bool has_steady_counter() {
#if defined(__x86_64__)
  unsigned a = 0, b = 0, c = 0, d = 0;
  return __get_cpuid(0x80000007, &a, &b, &c, &d) != 0 && (d & 1u << 8) != 0;
#else
  return false;
#endif
}
const bool steady_counter = has_steady_counter();

std::int64_t system_ns() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

Moment moment() { return {.ticks = detail::trace_clock(), .ns = system_ns()}; }

// Both numbers of an action as one; either may be -1.
std::int64_t stage_and_micro_batch(const TraceLabels& labels) {
  return (std::int64_t{labels.stage} << 32) | static_cast<std::uint32_t>(labels.micro_batch);
}

TraceEvent unpack(const Packed& packed, int thread, const Moment& begin, const Moment& end) {
  const double ns_per_tick = end.ticks > begin.ticks
                                 ? static_cast<double>(end.ns - begin.ns) / static_cast<double>(end.ticks - begin.ticks)
                                 : 1;
  const auto ns = [&](std::uint64_t ticks) {
    return begin.ns + static_cast<std::int64_t>(ns_per_tick * static_cast<double>(ticks - begin.ticks));
  };
  const bool is_action = packed.kind == TraceKind::kAction;
  return {.kind = packed.kind,
          .name = std::string(packed.name, strnlen(packed.name, sizeof(packed.name))),
          .thread = thread,
          .begin = ns(packed.begin),
          .end = ns(packed.end),
          .labels = {.bytes = is_action ? -1 : packed.bytes,
                     .from = packed.from,
                     .to = packed.to,
                     .id = packed.id,
                     .phase = packed.phase,
                     .group = packed.group,
                     .stage = is_action ? static_cast<int>(packed.bytes >> 32) : -1,
                     .micro_batch = is_action ? static_cast<int>(packed.bytes) : -1}};
}

}  // namespace

const char* name(TraceKind kind) {
  constexpr const char* kNames[kTraceKindCount] = {
      "user",        "step", "replica",    "forward", "backward",     "optimizer",
      "kernel",      "copy", "collective", "wait",    "bucket ready", "bucket launched",
      "bucket done", "hops", "memory",     "plan",    "action"};
  return kNames[static_cast<std::size_t>(kind)];
}

namespace detail {

std::uint64_t trace_clock() noexcept {
#if defined(__x86_64__)
  if (steady_counter) [[likely]]
    return __builtin_ia32_rdtsc();
#endif
  return static_cast<std::uint64_t>(system_ns());
}

void end_trace_span(TraceKind kind, const char* name, std::size_t length, std::uint64_t begin) noexcept {
  add_trace_event(kind, {name, length}, begin, trace_clock(), {});
}

void add_trace_event(TraceKind kind, std::string_view name, std::uint64_t begin, std::uint64_t end,
                     const TraceLabels& labels) noexcept {
  if (!is_tracing()) return;
  Ring* const ring = own_trace == current.load(std::memory_order_relaxed) ? own : new_ring();
  if (!ring) return;
  Packed event{.begin = begin,
               .end = end,
               .bytes = kind == TraceKind::kAction ? stage_and_micro_batch(labels) : labels.bytes,
               .id = static_cast<std::int32_t>(labels.id),
               .group = static_cast<std::uint16_t>(labels.group),
               .from = static_cast<std::int16_t>(labels.from),
               .to = static_cast<std::int16_t>(labels.to),
               .phase = static_cast<std::int8_t>(labels.phase),
               .kind = kind,
               .name = {}};
  std::memcpy(event.name, name.data(), std::min(name.size(), sizeof(event.name)));
  ring->push(event);
}

}  // namespace detail

void start_trace(const TraceOptions& options) {
  LOCKSTEP_CHECK(options.events_per_thread >= 1 && options.events_per_thread <= std::size_t{1} << 26,
                 "start_trace: {} events per thread, expected 1 to 67,108,864", options.events_per_thread);
  Rings& shared = rings();
  const std::lock_guard lock(shared.mutex);
  LOCKSTEP_CHECK(!is_tracing(), "start_trace: a trace is already running; end it with stop_trace()");
  shared.options = options;
  shared.all.clear();
  shared.free.clear();
  current.store(current.load(std::memory_order_relaxed) + 1, std::memory_order_relaxed);
  shared.begin = moment();
  detail::trace_level.store(options.kernels ? 2 : 1, std::memory_order_relaxed);
}

Trace stop_trace() {
  Rings& shared = rings();
  const std::lock_guard lock(shared.mutex);
  LOCKSTEP_CHECK(is_tracing(), "stop_trace: no trace is running; start one with start_trace()");
  detail::trace_level.store(0, std::memory_order_relaxed);
  const Moment begin = shared.begin, end = moment();
  Trace trace;
  for (const std::shared_ptr<Ring>& ring : shared.all) {
    trace.dropped += ring->read([&](const Packed& event) {
      if (event.begin >= begin.ticks) trace.events.push_back(unpack(event, ring->thread(), begin, end));
    });
  }
  shared.all.clear();
  shared.free.clear();
  std::ranges::stable_sort(trace.events, [](const TraceEvent& a, const TraceEvent& b) {
    return a.begin != b.begin ? a.begin < b.begin : a.end > b.end;
  });
  return trace;
}

}  // namespace lockstep
