// Writes traces in the JSON format of Chrome's tracing, for chrome://tracing and ui.perfetto.dev.
// https://docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU
#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <iterator>

#include "lockstep/base/file_internal.h"
#include "lockstep/base/trace.h"

namespace lockstep {
namespace {

using Text = fmt::memory_buffer;

template <class... Args>
void put(Text& out, fmt::format_string<Args...> format, Args&&... args) {
  fmt::format_to(std::back_inserter(out), format, std::forward<Args>(args)...);
}

// Names may be cut in the middle of a character: non-ASCII bytes become '?'.
std::string json_string(std::string_view text) {
  std::string out = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') out += '\\';
    out += c >= ' ' && c <= '~' ? c : '?';
  }
  return out + '"';
}

// Nanoseconds as the format's microseconds.
std::string microseconds(std::int64_t ns) { return fmt::format("{}.{:03}", ns / 1000, ns % 1000); }

void put_labels(Text& out, const TraceLabels& labels) {
  const char* comma = "";
  const auto put_one = [&](const char* key, std::int64_t value) {
    if (value < 0) return;
    put(out, "{}\"{}\":{}", comma, key, value);
    comma = ",";
  };
  put(out, ",\"args\":{{");
  put_one("bytes", labels.bytes);
  put_one("from", labels.from);
  put_one("to", labels.to);
  put_one("id", labels.id);
  put_one("phase", labels.phase);
  if (labels.group != 0) put_one("group", labels.group);
  put_one("stage", labels.stage);
  put_one("micro_batch", labels.micro_batch);
  put(out, "}}");
}

class Writer {
 public:
  Writer(Text& out, std::int64_t zero) : out_(out), zero_(zero) {}

  void process(const Trace& trace, int pid) {
    pid_ = pid;
    const std::string name = trace.process.empty() ? fmt::format("rank {}", trace.rank) : trace.process;
    put(out_,
        "{}{{\"ph\":\"M\",\"name\":\"process_name\",\"pid\":{},\"tid\":0,\"args\":{{\"name\":{},\"rank\":{},"
        "\"clock_offset_ns\":{},\"clock_error_ns\":{},\"dropped_events\":{}",
        pid == 0 ? "\n" : ",\n", pid, json_string(name), trace.rank, trace.clock_offset, trace.clock_error,
        trace.dropped);
    for (const auto& [key, value] : trace.notes) put(out_, ",{}:{}", json_string("note " + key), json_string(value));
    put(out_, "}}}}");
    put(out_, ",\n{{\"ph\":\"M\",\"name\":\"process_sort_index\",\"pid\":{},\"tid\":0,\"args\":{{\"sort_index\":{}}}}}",
        pid, pid);
    for (const TraceEvent& event : trace.events) write(event);
  }

 private:
  void write(const TraceEvent& event) {
    switch (event.kind) {
      case TraceKind::kCollective:  // these overlap with other events of the thread
      case TraceKind::kHops:
        begin(event, "b", event.begin), put_id(event), put_labels(out_, event.labels), put(out_, "}}");
        begin(event, "e", event.end), put_id(event), put(out_, "}}");
        return;
      case TraceKind::kBucketLaunched:
        arrow(event, "s", "");
        return moment(event);
      case TraceKind::kBucketDone:
        arrow(event, "f", ",\"bp\":\"e\"");
        return moment(event);
      case TraceKind::kBucketReady:
        return moment(event);
      case TraceKind::kMemory:
      case TraceKind::kPlan:
        begin(event, "C", event.begin), put(out_, ",\"args\":{{\"bytes\":{}}}}}", event.labels.bytes);
        return;
      default:
        begin(event, "X", event.begin), put(out_, ",\"dur\":{}", microseconds(event.end - event.begin));
        put_labels(out_, event.labels), put(out_, "}}");
    }
  }

  // Writes an id that is unique among events of the kind: collectives are numbered in their group, messages between
  // two ranks.
  void put_id(const TraceEvent& event) {
    const TraceLabels& labels = event.labels;
    if (event.kind == TraceKind::kHops) return put(out_, ",\"id\":\"{}.hops.{}\"", pid_, labels.id);
    put(out_, ",\"id\":\"{}.{}.", pid_, labels.group);
    if (labels.to >= 0) put(out_, "{}.{}.", event.name, labels.to);
    put(out_, "{}\"", labels.id);
  }
  void begin(const TraceEvent& event, const char* ph, std::int64_t ns) {
    put(out_, ",\n{{\"ph\":\"{}\",\"name\":{},\"cat\":\"{}\",\"pid\":{},\"tid\":{},\"ts\":{}", ph,
        json_string(event.name), name(event.kind), pid_, event.thread, microseconds(ns - zero_));
  }
  void moment(const TraceEvent& event) {
    begin(event, "i", event.begin), put(out_, ",\"s\":\"t\"");
    put_labels(out_, event.labels), put(out_, "}}");
  }
  // Writes an arrow from a bucket's launch to its completion. Each launch gets a new arrow number.
  void arrow(const TraceEvent& event, const char* ph, const char* rest) {
    if (*ph == 's') arrows_.push_back({event.labels.id, ++arrow_});
    const auto open = std::ranges::find(arrows_, event.labels.id, &Arrow::bucket);
    if (open == arrows_.end()) return;  // launched before the oldest event
    put(out_, ",\n{{\"ph\":\"{}\",\"name\":\"bucket\",\"cat\":\"bucket\",\"id\":{},\"pid\":{},\"tid\":{},\"ts\":{}{}}}",
        ph, open->number, pid_, event.thread, microseconds(event.begin - zero_), rest);
    if (*ph == 'f') arrows_.erase(open);
  }

  struct Arrow {
    std::int64_t bucket;
    int number;
  };
  Text& out_;
  std::int64_t zero_;
  int pid_ = 0, arrow_ = 0;
  std::vector<Arrow> arrows_;
};

}  // namespace

void write_chrome_trace(const std::string& path, const std::vector<Trace>& traces) {
  std::int64_t zero = INT64_MAX;
  for (const Trace& trace : traces) {
    if (!trace.events.empty()) zero = std::min(zero, trace.events.front().begin);
  }
  AtomicFile file(path);
  Text out;
  put(out, "{{\"displayTimeUnit\":\"ns\",\"traceEvents\":[");
  Writer writer(out, zero);
  for (std::size_t pid = 0; pid < traces.size(); ++pid) {
    writer.process(traces[pid], static_cast<int>(pid));
    file.write(std::string_view(out.data(), out.size()));
    out.clear();
  }
  put(out, "\n]}}\n");
  file.write(std::string_view(out.data(), out.size()));
  file.commit();
}

}  // namespace lockstep
