// Pipelines in traces: the schedule and the times that are read from a trace are those with which it was made, and
// lockstep-explain schedule --profile predicts its step.
#include <doctest/doctest.h>
#include <lockstep/lockstep.h>

#include <cmath>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "lockstep/parallel/schedule/schedule_internal.h"
#include "tests/samples/support.h"
#include "tools/report/chrome_trace.h"
#include "tools/report/pipeline.h"
#include "tools/report/report.h"

namespace {

namespace par = lockstep::parallel;
using lockstep::Trace;
using lockstep::TraceEvent;
using lockstep::TraceKind;
using report::PipelineProfile;

constexpr std::int64_t kPause = 1'000;  // between two steps

struct Made {
  par::ScheduleTable table;
  std::vector<par::StageCosts> stages;
  par::MessageTime link = {};
  int steps = 3;
};

// Traces as ranks without overhead would have them, in nanoseconds: a send takes no time, a receive its wait.
std::vector<Trace> traces_of(const Made& made) {
  const par::Timeline timeline = par::simulate(made.table, made.stages, made.link);
  par::ScheduleRows rows;
  for (int rank = 0; rank < made.table.ranks(); ++rank) rows.push_back(made.table.actions(rank));
  rows = par::with_messages(rows, {made.table.ranks(), made.table.stages(), made.table.micro_batches()});
  std::vector<Trace> traces;
  for (std::size_t rank = 0; rank < rows.size(); ++rank) {
    Trace& trace =
        traces.emplace_back(Trace{.process = "rank " + std::to_string(rank), .rank = static_cast<int>(rank)});
    for (int step = 0; step < made.steps; ++step) {
      std::int64_t now = step * (std::llround(timeline.seconds) + kPause);
      const std::int64_t zero = now;
      std::size_t next = 0;
      const auto& timed = timeline.ranks[rank].actions;
      for (std::size_t row = 0; row < rows[rank].size(); ++row) {
        const par::ScheduleAction& action = rows[rank][row];
        const bool computes = par::is_computing(action.kind), waits = action.kind == par::ActionKind::kReceiveForward ||
                                                                      action.kind == par::ActionKind::kReceiveBackward;
        const std::int64_t begin = computes ? zero + std::llround(timed[next].begin) : now;
        if (computes) now = zero + std::llround(timed[next++].end);
        if (waits) now = zero + std::llround(timed[next].begin);
        trace.events.push_back(
            {.kind = TraceKind::kAction,
             .name = action.to_string(),
             .begin = begin,
             .end = now,
             .labels = {
                 .id = static_cast<std::int64_t>(row), .stage = action.stage, .micro_batch = action.micro_batch}});
      }
    }
  }
  return traces;
}

std::vector<Trace> through_a_file(const std::vector<Trace>& traces) {
  lockstep::write_chrome_trace("pipeline.json", traces);
  return report::read_chrome_trace("pipeline.json");
}

std::vector<par::StageCosts> equal_stages(const par::ScheduleTable& table) {
  const double v = table.chunks();
  return std::vector<par::StageCosts>(static_cast<std::size_t>(table.stages()), {1200 / v, 1320 / v, 960 / v});
}

double closed_form(par::Schedule schedule, int p, int m, int v) {
  const double f = 1200, i = 1320, w = 960;
  if (schedule == par::Schedule::kZeroBubble) return m * (f + i + w) + (p - 1) * (f + i - w);
  return m * (f + i + w) + (p - 1) * (f + i + w) / v;
}

double nanoseconds(const PipelineProfile& profile) {
  return static_cast<double>(profile.median_step().end - profile.median_step().begin);
}

std::string explain_program() { return std::filesystem::path(LOCKSTEP_RUN).replace_filename("lockstep-explain"); }

}  // namespace

TEST_CASE("times from a trace give the closed form of every schedule, exactly") {
  using par::Schedule;
  for (const Schedule schedule : {Schedule::kGPipe, Schedule::k1F1B, Schedule::kInterleaved, Schedule::kZeroBubble}) {
    for (const int p : {1, 2, 4}) {
      const int v = schedule == Schedule::kInterleaved ? 2 : 1;
      CAPTURE(par::name(schedule));
      CAPTURE(p);
      const auto table = par::ScheduleTable::make(schedule, p, 8, v);
      const auto profile = report::pipeline_profile(through_a_file(traces_of({table, equal_stages(table)})));
      REQUIRE(profile);
      CHECK(profile->table == table);
      CHECK(profile->is_split == (schedule == Schedule::kZeroBubble));
      CHECK(profile->steps.size() == 3);
      CHECK(profile->link.latency == 0);
      CHECK(nanoseconds(*profile) == closed_form(schedule, p, 8, v));
      const par::Timeline timeline = par::simulate(table, profile->stages_for(table.stages()), profile->link);
      CHECK(timeline.seconds == closed_form(schedule, p, 8, v));
      CHECK(timeline.idle == doctest::Approx(profile->median_step().idle()).epsilon(1e-12));
      // Stages of another number of ranks have the same work.
      if (schedule != Schedule::kZeroBubble) continue;
      for (const int ranks : {1, 2, 8}) {
        double work = 0;
        for (const par::StageCosts& each : profile->stages_for(ranks)) work += each.forward + each.backward_input;
        CHECK(work == p * (1200.0 + 1320.0));
      }
    }
  }
}

TEST_CASE("times from a trace are those of each stage, and the latency of its messages") {
  const auto table = par::ScheduleTable::make(par::Schedule::kZeroBubble, 3, 6);
  const std::vector<par::StageCosts> stages = {{300, 200, 100}, {500, 400, 300}, {250, 350, 150}};
  std::vector<Trace> traces = traces_of({table, stages, {.latency = 40}});
  // A forward that takes long once, and a step whose begin was dropped, change nothing.
  TraceEvent& slow = traces[1].events[traces[1].events.size() / 3 + 1];
  CHECK(slow.name == "1F0");
  slow.end += 30;
  traces[2].events.erase(traces[2].events.begin(), traces[2].events.begin() + 5);
  const auto profile = report::pipeline_profile(through_a_file(traces));
  REQUIRE(profile);
  CHECK(profile->table == table);
  CHECK(profile->steps.size() == 2);
  CHECK(profile->link.latency == 40);
  for (std::size_t s = 0; s < stages.size(); ++s) {
    CHECK(profile->stages[s].forward == stages[s].forward);
    CHECK(profile->stages[s].backward_input == stages[s].backward_input);
    CHECK(profile->stages[s].backward_weight == stages[s].backward_weight);
  }
  CHECK(nanoseconds(*profile) == par::simulate(table, stages, {.latency = 40}).seconds);
  CHECK_THROWS_WITH_AS(profile->stages_for(4),
                       "schedule: the trace has 3 stages, and the schedule 4; expected a multiple or a divisor",
                       lockstep::InvalidArgument);
}

TEST_CASE("replicas of a pipeline are steps of their own, and evaluations are none") {
  const auto table = par::ScheduleTable::make(par::Schedule::k1F1B, 2, 4);
  const std::vector<Trace> one = traces_of({table, equal_stages(table)});
  std::vector<Trace> mesh = {one[0], one[0], one[1], one[1]};  // pp=2,dp=2
  for (Trace& trace : mesh) {
    std::vector<TraceEvent> evaluation;
    for (TraceEvent event : trace.events) {
      if (event.name.find('F') == std::string::npos) continue;
      event.begin += 1'000'000;
      event.end += 1'000'000;
      evaluation.push_back(event);
    }
    trace.events.insert(trace.events.end(), evaluation.begin(), evaluation.end());
  }
  const auto profile = report::pipeline_profile(mesh);
  REQUIRE(profile);
  CHECK(profile->table == table);
  CHECK(profile->steps.size() == 2 * 3);
  mesh.pop_back();
  CHECK_FALSE(report::pipeline_profile(mesh));  // the trace of a rank is missing
  CHECK_FALSE(report::pipeline_profile({one[1]}));
  CHECK_FALSE(report::pipeline_profile({Trace{}}));
  CHECK_THROWS_AS(report::pipeline_profile({Trace{.events = {{.kind = TraceKind::kAction, .name = "later"}}}}),
                  lockstep::IoError);
}

TEST_CASE("lockstep-explain schedule --profile: the prediction, next to the measured step where there is one") {
  if (!std::filesystem::exists(LOCKSTEP_RUN)) return;
  const auto explain = [](const std::vector<std::string>& more) {
    std::vector<std::string> arguments = {"schedule"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    return run(explain_program(), arguments);
  };
  const auto table = par::ScheduleTable::make(par::Schedule::k1F1B, 2, 8);
  const std::vector<par::StageCosts> stages = {{1e6, 1e6, 1e6}, {1e6, 1e6, 1e6}};
  lockstep::write_chrome_trace("given.json", traces_of({table, stages}));
  const Finished same = explain({"1f1b", "--profile", "given.json", "--html", "given.html"});
  CAPTURE(same.output);
  CHECK(same.code == 0);
  CHECK(contains(same.output, "schedule 1f1b: 2 ranks, 8 micro-batches, 1 chunk on each rank\n"));
  CHECK(contains(same.output,
                 "Times for a micro-batch from given.json: medians over 3 steps of 2 ranks and 8 "
                 "micro-batches\nstage  F         B\n    0  1.00 ms   2.00 ms\n    1  1.00 ms   2.00 ms\n"));
  CHECK(
      contains(same.output, "step        27.00 ms\nmeasured    27.00 ms, idle 11.1 %; the prediction is +0.0 % off\n"));
  CHECK(contains(same.output, "\nzb1p         1       25.00 ms  "));
  CHECK(contains(read_file("given.html"), "A step takes 27.00 ms"));
  const Finished other = explain({"zb1p", "--pp", "4", "--profile", "given.json"});
  CAPTURE(other.output);
  CHECK(contains(other.output, "schedule zb1p: 4 ranks, 8 micro-batches"));
  CHECK(contains(other.output, "\nmeasured    the trace has another schedule\n"));
  const Finished both = explain({"1f1b", "--costs", "1,1,1", "--profile", "given.json"});
  CHECK(both.code == 2);
  CHECK(contains(both.output, "--costs: is not for --profile, which has its own\nLeave one of the two out"));
  lockstep::write_chrome_trace("none.json", {Trace{.process = "a"}});
  const Finished none = explain({"1f1b", "--profile", "none.json"});
  CHECK(none.code == 1);
  CHECK(contains(none.output, "none.json: there is no complete step of a pipeline; trace a step of "));
}

TEST_CASE("a report has the planned and the measured lanes of a pipeline, with the idle share of both") {
  const auto table = par::ScheduleTable::make(par::Schedule::kZeroBubble, 2, 4);
  std::vector<Trace> traces = traces_of({table, equal_stages(table)});
  const std::string page = report::page_of({.title = "t", .runs = report::runs_of(traces, "run")}),
                    open = "<script type=\"application/json\" id=\"data\">";
  const std::size_t begin = page.find(open) + open.size();
  const auto data = nlohmann::json::parse(page.substr(begin, page.find("</script>", begin) - begin));
  const auto& pipeline = data.at("modes").at(0).at("pipeline");
  const double seconds = closed_form(par::Schedule::kZeroBubble, 2, 4, 1);
  CHECK(pipeline.at("planned_ns") == seconds);
  CHECK(pipeline.at("measured_ns") == seconds);
  REQUIRE(pipeline.at("ranks").size() == 2);
  for (const auto& rank : pipeline.at("ranks")) {
    CHECK(rank.at("planned") == rank.at("measured"));
    CHECK(rank.at("planned").size() == 3 * 4);
    CHECK(rank.at("planned_idle") == doctest::Approx(1 - 4 * 3480 / seconds));
    CHECK(rank.at("measured_idle") == doctest::Approx(1 - 4 * 3480 / seconds));
  }
  CHECK(pipeline.at("ranks")[1].at("name") == "rank 1");
  const nlohmann::json first = {0, 1, 0, 1200, 1200};  // 1F0, after 0F0
  CHECK(pipeline.at("ranks")[1].at("planned")[0] == first);
  traces[0].events.clear();
  const std::string none = report::page_of({.title = "t", .runs = report::runs_of(traces, "run")});
  CHECK(contains(none, "\"pipeline\":null"));
}
