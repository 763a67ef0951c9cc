// lockstep-explain report: the traces of any program are read back, grouped into runs, cut into steps, and explained.
#include <doctest/doctest.h>
#include <lockstep/lockstep.h>

#include <fstream>
#include <nlohmann/json.hpp>
#include <span>

#include "tests/samples/support.h"
#include "tools/report/causes.h"
#include "tools/report/chrome_trace.h"

namespace {

using lockstep::Trace;
using lockstep::TraceEvent;
using lockstep::TraceKind;
using lockstep::TraceLabels;
using report::Run;

TraceEvent event(TraceKind kind, const char* name, std::int64_t begin, std::int64_t end, TraceLabels labels = {},
                 int thread = 0) {
  return {.kind = kind, .name = name, .thread = thread, .begin = begin, .end = end, .labels = labels};
}

std::string error_of(const std::string& text) {
  try {
    report::parse_chrome_trace(std::as_bytes(std::span(text)), "t.json");
  } catch (const lockstep::IoError& error) {
    return error.what();
  }
  return "";
}

// Three steps without marks: forward, backward, optimizer.
std::vector<TraceEvent> unmarked_steps() {
  std::vector<TraceEvent> events;
  for (std::int64_t begin = 1'000; begin < 31'000; begin += 10'000) {
    events.push_back(event(TraceKind::kForward, "model", begin, begin + 2'000));
    events.push_back(event(TraceKind::kBackward, "backward", begin + 2'000, begin + 6'000));
    events.push_back(event(TraceKind::kOptimizer, "SGD", begin + 6'000, begin + 7'000));
    events.push_back(event(TraceKind::kOptimizer, "Adam", begin + 7'000, begin + 8'000));
  }
  return events;
}

nlohmann::json page_data(const std::string& path) {
  const std::string page = read_file(path), open = "<script type=\"application/json\" id=\"data\">";
  const std::size_t begin = page.find(open);
  REQUIRE(begin != std::string::npos);
  return nlohmann::json::parse(page.substr(begin + open.size(), page.find("</script>", begin) - begin - open.size()));
}

std::string explain_program() { return std::filesystem::path(LOCKSTEP_RUN).replace_filename("lockstep-explain"); }

}  // namespace

TEST_CASE("a trace that was written is read back with all events, labels and notes") {
  const TraceLabels all = {.bytes = 64, .from = 1, .to = 2, .id = 9, .phase = 5, .group = 3};
  Trace first{.process = "ddp rank 0", .clock_offset = -5, .clock_error = 40, .dropped = 2};
  first.events = {event(TraceKind::kStep, "step", 0, 9'000, {.id = 7}),
                  event(TraceKind::kForward, "fc Linear", 1'001, 2'002, {}, 1),
                  event(TraceKind::kBucketReady, "w", 2'100, 2'100, {.bytes = 8, .id = 0}),
                  event(TraceKind::kBucketLaunched, "w", 2'200, 2'200, {.bytes = 8, .id = 0}),
                  event(TraceKind::kCollective, "all_reduce", 2'201, 3'002, all),
                  event(TraceKind::kCollective, "send", 2'300, 2'900, {.from = 0, .to = 1, .id = 9}),
                  event(TraceKind::kHops, "hops", 2'400, 2'500, {.bytes = 4, .from = 0, .id = 1}),
                  event(TraceKind::kBucketDone, "w", 3'100, 3'100, {.bytes = 8, .id = 0}),
                  event(TraceKind::kCopy, "inputs", 3'200, 3'300, all),
                  event(TraceKind::kMemory, "memory", 3'400, 3'400, {.bytes = 9'000'000'000}),
                  event(TraceKind::kPlan, "planned memory", 3'500, 3'500, {.bytes = 7}),
                  event(TraceKind::kAction, "5RECV_F3", 3'600, 3'700, {.id = 12, .stage = 5, .micro_batch = 3})};
  first.notes = {{"parameter_hash", "00ff"}, {"say", "\"a\\b\""}};
  lockstep::write_chrome_trace("read_back.json", {first, Trace{.process = "ddp rank 1", .rank = 1}});
  const std::vector<Trace> traces = report::read_chrome_trace("read_back.json");
  REQUIRE(traces.size() == 2);
  CHECK(traces[1].rank == 1);
  CHECK(traces[0].process == first.process);
  CHECK(traces[0].clock_offset == first.clock_offset);
  CHECK(traces[0].clock_error == first.clock_error);
  CHECK(traces[0].dropped == first.dropped);
  CHECK(traces[0].notes == first.notes);
  REQUIRE(traces[0].events.size() == first.events.size());
  for (std::size_t i = 0; i < first.events.size(); ++i) {
    const TraceEvent &was = first.events[i], &is = traces[0].events[i];
    CAPTURE(was.name);
    CHECK(is.kind == was.kind);
    CHECK(is.name == was.name);
    CHECK(is.thread == was.thread);
    CHECK(is.begin == was.begin);
    CHECK(is.end == was.end);
    CHECK(is.labels.bytes == was.labels.bytes);
    CHECK(is.labels.from == was.labels.from);
    CHECK(is.labels.to == was.labels.to);
    CHECK(is.labels.id == was.labels.id);
    CHECK(is.labels.phase == was.labels.phase);
    CHECK(is.labels.group == was.labels.group);
    CHECK(is.labels.stage == was.labels.stage);
    CHECK(is.labels.micro_batch == was.labels.micro_batch);
  }
}

TEST_CASE("files that are no traces of write_chrome_trace are errors that say so") {
  CHECK(contains(error_of("{"), "t.json: not a trace of write_chrome_trace: "));
  CHECK(contains(error_of("{\"traceEvents\":[]}"), "there is no process in it"));
  const std::string process =
      R"({"ph":"M","name":"process_name","pid":0,"args":{"name":"a","rank":0,"clock_offset_ns":0,"clock_error_ns":0,"dropped_events":0}})";
  const auto with = [&](const std::string& event) { return "{\"traceEvents\":[" + process + "," + event + "]}"; };
  CHECK(error_of("{\"traceEvents\":[" + process + "]}").empty());
  CHECK(contains(error_of(with(process)), "two processes with the number 0"));
  CHECK(contains(error_of(with(R"({"ph":"X","cat":"python","name":"f","pid":0,"tid":0,"ts":0,"dur":1,"args":{}})")),
                 "category is \"python\", expected one of Lockstep's"));
  CHECK(contains(error_of(with(R"({"ph":"X","cat":"user","name":"f","pid":1,"tid":0,"ts":0,"dur":1,"args":{}})")),
                 "belongs to process 1, which has no name"));
  CHECK(contains(error_of(with(R"({"ph":"X","cat":"user","name":"f","pid":0,"tid":0,"ts":-1,"dur":1,"args":{}})")),
                 "\"ts\" is -1"));
  CHECK(contains(error_of(with(R"({"ph":"X","cat":"user","name":"f","pid":0,"tid":0.5,"ts":0,"dur":1,"args":{}})")),
                 "\"tid\" is 0.5, expected an integer"));
  CHECK(contains(
      error_of(with(R"({"ph":"X","cat":"user","name":"f","pid":0,"tid":0,"ts":0,"dur":1,"args":{"bytes":1e18}})")),
      "\"bytes\" is 1e+18"));
  CHECK_THROWS_AS(report::read_chrome_trace("no_such_file.json"), lockstep::IoError);
}

TEST_CASE("processes are grouped into runs by their names, and modes follow from the events") {
  const auto trace = [](const char* process, int rank, TraceKind kind) {
    return Trace{.process = process, .rank = rank, .events = {event(kind, "e", 0, 1)}};
  };
  const std::vector<Run> runs =
      report::runs_of({trace("fast rank 0", 0, TraceKind::kBucketReady), trace("one", 0, TraceKind::kForward),
                       trace("fast rank 1", 1, TraceKind::kBucketReady), trace("", 0, TraceKind::kReplica),
                       trace("rank 1", 1, TraceKind::kReplica), trace("mpi", 0, TraceKind::kCollective),
                       trace("mine", 0, TraceKind::kPlan)},
                      "file");
  std::string text;
  for (const Run& run : runs) text += run.name + " " + run.mode + " " + std::to_string(run.traces.size()) + "; ";
  CHECK(text == "fast ddp 2; one single 1; file dp 2; mpi ranks 1; mine sharded 1; ");
  Trace noted{.process = "a", .notes = {{"mode", "accumulate"}, {"parameter_hash", "12"}, {"gradient_bytes", "124"}}};
  noted.notes.push_back(
      report::counters_note({.steps = 3, .in_steps = {{0, 1, lockstep::parallel::Phase::kInputs, 5, 6}}}));
  noted.notes.push_back(report::losses_note({{1, 0.5, NAN}}));
  const Run run = report::runs_of({noted}, "").at(0);
  CHECK(run.mode == "accumulate");
  CHECK(run.parameter_hash == "12");
  CHECK(run.gradient_bytes == 124);
  CHECK(run.is_counted);
  CHECK(run.counters.steps == 3);
  CHECK(run.counters.in_steps.at(0).bytes == 5);
  CHECK(run.losses.at(0).steps == 0.5);
  CHECK(std::isnan(run.losses.at(0).test));
  noted.notes = {{"losses", "{"}};
  CHECK_THROWS_WITH_AS(report::runs_of({noted}, ""), doctest::Contains("a: the note \"losses\" is not what"),
                       lockstep::IoError);
}

TEST_CASE("without marks, steps end with the optimizer step that follows a backward") {
  const Run run = report::runs_of({Trace{.process = "a", .events = unmarked_steps()}}, "").at(0);
  const auto steps = last_steps(run, 20);
  REQUIRE(steps.size() == 3);
  CHECK(steps[0].number == 1);
  CHECK(steps[2].number == 3);
  CHECK(steps[0].begin == 1'000);
  CHECK(steps[1].begin == 8'000);
  CHECK(steps[1].end == 18'000);
  const Run no_optimizer =
      report::runs_of({Trace{.process = "a", .events = {event(TraceKind::kForward, "f", 5, 9)}}}, "").at(0);
  REQUIRE(last_steps(no_optimizer, 20).size() == 1);
  CHECK(last_steps(no_optimizer, 20)[0].end == 9);
  CHECK(last_steps(report::runs_of({Trace{.process = "a"}}, "").at(0), 20).empty());
}

TEST_CASE("DataParallel: the cause of waiting is the replica that ends last, and its forward or backward") {
  Run run{.name = "dp", .mode = "dp"};
  run.traces.push_back(
      {.events = {event(TraceKind::kStep, "step", 0, 100'000, {.id = 1}), event(TraceKind::kForward, "model", 0, 4'000),
                  event(TraceKind::kReplica, "replica", 5'000, 68'000, {.id = 1}, 1),
                  event(TraceKind::kWait, "replicas", 6'000, 68'000),
                  event(TraceKind::kForward, "model", 10'000, 11'000, {}, 1),
                  event(TraceKind::kCopy, "outputs", 67'000, 68'000, {.bytes = 8, .from = 1, .to = 0}, 1)}});
  const auto steps = last_steps(run, 1);
  const auto causes = causes_of(run, steps);
  REQUIRE(causes.size() == 3);
  CHECK(causes[0].text() == "cpu:0 waits for cpu:1's forward");
  CHECK(causes[0].ns == 62'000);
  CHECK(causes[1].text() == "cpu:1 waits for cpu:0's loading of data and bookkeeping");  // which has no work of its own
  CHECK(causes[1].ns == 32'000);
  CHECK(causes[2].text() == "cpu:1 waits for cpu:0, mainly its forward");
  CHECK(causes[2].ns == 5'000);
  CHECK(contains(
      verdict(run, steps),
      "the step is limited by waiting: cpu:0 waits for cpu:1's forward, 62.0 us a step on average; the devices "
      "compute for 5.0 us per step in total, and the step takes 100.0 us: one device would be faster"));
}

TEST_CASE("ranks: the cause is the last rank to launch a bucket's collective, and afterwards its bytes") {
  constexpr int kGradients = static_cast<int>(lockstep::parallel::Phase::kGradients);
  const auto rank = [](int r, std::int64_t launch) {
    return Trace{.process = r == 0 ? "ddp rank 0" : "ddp rank 1",
                 .rank = r,
                 .clock_error = r == 0 ? 0 : 50,
                 .events = {event(TraceKind::kStep, "step", 0, 10'000, {.id = 7}),
                            event(TraceKind::kBucketReady, "fc.bias", launch, launch, {.bytes = 8, .id = 0}),
                            event(TraceKind::kBucketLaunched, "fc.bias", launch, launch, {.bytes = 8, .id = 0}),
                            event(TraceKind::kCollective, "all_reduce", launch, 9'000,
                                  {.bytes = 8, .from = r, .id = 12, .phase = kGradients}),
                            event(TraceKind::kWait, "all_reduce", launch + 500, 9'000, {.id = 12})}};
  };
  const Run run = report::runs_of({rank(0, 1'000), rank(1, 8'000)}, "").at(0);
  const auto causes = causes_of(run, last_steps(run, 1));
  REQUIRE(causes.size() == 3);
  CHECK(causes[0].text() == "rank 0 waits for rank 1, the last to launch the all_reduce of bucket 0 (fc.bias)");
  CHECK(causes[0].ns == 8'000 - 1'500);
  CHECK(causes[1].text() == "rank 0 waits for the all_reduce of bucket 0 (fc.bias), which all ranks have launched");
  CHECK(causes[1].ns == 1'000);
  CHECK(causes[2].ns == 500);
}

TEST_CASE("lockstep-explain report: the page of a user's program, with the bytes of its events") {
  if (!std::filesystem::exists(LOCKSTEP_RUN)) return;
  std::vector<TraceEvent> events = unmarked_steps();
  events.push_back(event(TraceKind::kCopy, "inputs", 25'000, 26'000, {.bytes = 30, .from = 0, .to = 1, .phase = 1}));
  lockstep::write_chrome_trace("mine.json", {Trace{.events = events, .notes = {{"parameter_hash", "77"}}}});
  const Finished made =
      run(explain_program(), {"report", "mine.json", "mine.json", "--out", "mine.html", "--title", "Mine"});
  CAPTURE(made.output);
  REQUIRE(made.code == 0);
  CHECK(contains(made.output, "mine: compute "));
  CHECK(contains(made.output, "page: mine.html"));
  const auto data = page_data("mine.html");
  CHECK(data.at("program") == "Mine");
  REQUIRE(data.at("modes").size() == 2);
  CHECK(data.at("modes")[0].at("name") == "mine");
  CHECK(data.at("modes")[1].at("name") == "mine (mine)");
  const auto& mode = data.at("modes")[0];
  CHECK(mode.at("hash") == "77");
  CHECK(mode.at("counted") == false);
  CHECK(mode.at("step_count") == 3);
  REQUIRE(mode.at("links").size() == 1);
  CHECK(mode.at("links")[0].at("bytes") == 30);
  CHECK(mode.at("links")[0].at("phase") == "inputs");
  const Finished failed = run(explain_program(), {"report", "no_such.json"});
  CHECK(failed.code == 1);
  CHECK(contains(failed.output, "no_such.json"));
}
