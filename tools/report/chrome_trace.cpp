#include "tools/report/chrome_trace.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <string_view>

#include "lockstep/base/file_internal.h"
#include "tools/report/json.h"

namespace report {
namespace {

namespace ls = lockstep;
using ls::TraceKind;

constexpr std::uint64_t kLargestFile = std::uint64_t{1} << 30;
constexpr double kLatest = 1e12;  // microseconds: eleven days
constexpr std::string_view kNote = "note ";

[[noreturn]] void fail(const std::string& what) { throw ls::IoError(what); }

template <class T>
void read_integer(const Json& json, const char* key, T& value) {
  value = integer<T>(json.at(key), key);
}

std::int64_t nanoseconds(const Json& event, const char* key) {
  const double value = event.at(key);
  if (!(value >= 0 && value <= kLatest))
    fail(fmt::format("an event's \"{}\" is {}, expected 0 to {:g}", key, value, kLatest));
  return std::llround(value * 1e3);
}

TraceKind kind_of(const Json& event) {
  const std::string& category = event.at("cat").get_ref<const std::string&>();
  for (int kind = 0; kind < ls::kTraceKindCount; ++kind) {
    if (category == name(static_cast<TraceKind>(kind))) return static_cast<TraceKind>(kind);
  }
  fail(fmt::format("an event's category is \"{}\", expected one of Lockstep's, such as \"forward\"",
                   category.substr(0, 80)));
}

ls::TraceEvent to_event(const Json& json) {
  ls::TraceEvent event{.kind = kind_of(json), .name = json.at("name"), .begin = nanoseconds(json, "ts"), .end = 0};
  event.end = event.begin + (json.contains("dur") ? nanoseconds(json, "dur") : 0);
  read_integer(json, "tid", event.thread);
  const Json& labels = json.at("args");
  const auto label = [&](const char* key, auto& value) {
    if (labels.contains(key)) read_integer(labels, key, value);
  };
  label("bytes", event.labels.bytes);
  label("from", event.labels.from);
  label("to", event.labels.to);
  label("id", event.labels.id);
  label("phase", event.labels.phase);
  label("group", event.labels.group);
  label("stage", event.labels.stage);
  label("micro_batch", event.labels.micro_batch);
  return event;
}

class Reader {
 public:
  void read(const Json& json) {
    const std::string& type = json.at("ph").get_ref<const std::string&>();
    if (type == "M" && json.at("name") == "process_name") {
      begin_process(integer<int>(json.at("pid"), "pid"), json.at("args"));
    } else if (type == "X" || type == "i" || type == "C") {
      trace_of(json).events.push_back(to_event(json));
    } else if (type == "b") {
      open_[key_of(json)] = to_event(json);
    } else if (type == "e") {
      close(json);
    }
  }

  std::vector<ls::Trace> take() {
    for (ls::Trace& trace : traces_) {
      std::ranges::stable_sort(trace.events, [](const ls::TraceEvent& a, const ls::TraceEvent& b) {
        return a.begin != b.begin ? a.begin < b.begin : a.end > b.end;
      });
    }
    return std::move(traces_);
  }

 private:
  void begin_process(int pid, const Json& args) {
    if (!processes_.emplace(pid, traces_.size()).second)
      fail(fmt::format("there are two processes with the number {}", pid));
    ls::Trace& trace = traces_.emplace_back(ls::Trace{.process = args.at("name")});
    read_integer(args, "rank", trace.rank);
    read_integer(args, "clock_offset_ns", trace.clock_offset);
    read_integer(args, "clock_error_ns", trace.clock_error);
    read_integer(args, "dropped_events", trace.dropped);
    for (const auto& [key, value] : args.items()) {
      if (key.starts_with(kNote)) trace.notes.emplace_back(key.substr(kNote.size()), value.get<std::string>());
    }
  }

  ls::Trace& trace_of(const Json& json) {
    const auto found = processes_.find(integer<int>(json.at("pid"), "pid"));
    if (found == processes_.end())
      fail(fmt::format("an event belongs to process {}, which has no name", json.at("pid").dump()));
    return traces_[found->second];
  }

  // The two halves of an operation that overlaps with other events have these in common.
  static std::string key_of(const Json& json) {
    return fmt::format("{} {} {} {}", json.at("pid").dump(), json.at("tid").dump(), json.at("cat").dump(),
                       json.at("id").dump());
  }

  void close(const Json& json) {
    const auto open = open_.find(key_of(json));
    if (open == open_.end()) return;
    open->second.end = std::max(open->second.begin, nanoseconds(json, "ts"));
    trace_of(json).events.push_back(std::move(open->second));
    open_.erase(open);
  }

  std::vector<ls::Trace> traces_;
  std::map<int, std::size_t> processes_;  // positions in traces_, by process number
  std::map<std::string, ls::TraceEvent> open_;
};

}  // namespace

std::vector<ls::Trace> parse_chrome_trace(std::span<const std::byte> text, const std::string& name) {
  const char* const first = reinterpret_cast<const char*>(text.data());
  try {
    const Json json = Json::parse(first, first + text.size());
    Reader reader;
    for (const Json& event : json.at("traceEvents")) reader.read(event);
    std::vector<ls::Trace> traces = reader.take();
    if (traces.empty()) fail("there is no process in it");
    return traces;
  } catch (const nlohmann::json::exception& error) {
    throw ls::IoError(fmt::format("{}: not a trace of write_chrome_trace: {}", name, shortened(error.what())));
  } catch (const ls::IoError& error) {
    throw ls::IoError(fmt::format("{}: not a trace of write_chrome_trace: {}", name, error.what()));
  }
}

std::vector<ls::Trace> read_chrome_trace(const std::string& path) {
  return parse_chrome_trace(ls::read_file(path, kLargestFile), path);
}

}  // namespace report
