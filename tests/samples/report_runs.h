// Made-up traces of the strategies, and the report's answers about them.
#pragma once

#include <doctest/doctest.h>
#include <lockstep/lockstep.h>

#include <string>
#include <vector>

#include "tests/samples/support.h"
#include "tools/report/answers.h"
#include "tools/report/causes.h"
#include "tools/report/report.h"

namespace report_runs {

using lockstep::Trace;
using lockstep::TraceEvent;
using lockstep::TraceKind;
using lockstep::TraceLabels;
using lockstep::parallel::Phase;
using report::Run;

constexpr int kGradients = static_cast<int>(Phase::kGradients);
constexpr std::int64_t kModel = 1'000'000;  // bytes of parameters

// Times are microseconds.
inline TraceEvent event(TraceKind kind, const char* name, std::int64_t begin, std::int64_t end, TraceLabels labels = {},
                        int thread = 0) {
  return {.kind = kind, .name = name, .thread = thread, .begin = 1'000 * begin, .end = 1'000 * end, .labels = labels};
}

// A step of 3,000 us on one device, of which the optimizer takes 1,000.
inline Run single() {
  return {.name = "single",
          .mode = "single",
          .traces = {{.events = {event(TraceKind::kStep, "step", 0, 3'000, {.id = 1}),
                                 event(TraceKind::kForward, "model", 0, 800),
                                 event(TraceKind::kBackward, "backward", 800, 2'000),
                                 event(TraceKind::kOptimizer, "AdamW", 2'000, 3'000)}}},
          .memory = {kModel, kModel, 2 * kModel, 0}};
}

// Two ranks with one bucket of which rank 1 is `late` us later; the all-reduce takes 100 us and the optimizer `optimizer`.
inline Run ranks(const char* mode, std::int64_t late, std::int64_t optimizer) {
  Run run{.name = mode, .mode = mode};
  const std::int64_t sum = 1'100 + late, end = sum + optimizer;
  for (int r = 0; r < 2; ++r) {
    const std::int64_t own = 1'000 + (r == 1 ? late : 0);
    run.traces.push_back(
        {.process = std::string(mode) + " rank " + std::to_string(r),
         .rank = r,
         .events = {event(TraceKind::kStep, "step", 0, end, {.id = 1}), event(TraceKind::kForward, "model", 0, 400),
                    event(TraceKind::kBackward, "backward", 400, own),
                    event(TraceKind::kBucketReady, "fc", own, own, {.bytes = kModel, .id = 0}),
                    event(TraceKind::kBucketLaunched, "fc", own, own, {.bytes = kModel, .id = 0}),
                    event(TraceKind::kCollective, "all_reduce", own, sum,
                          {.bytes = kModel, .from = r, .id = 4, .phase = kGradients}),
                    event(TraceKind::kWait, "all_reduce", own, sum, {.id = 4}),
                    event(TraceKind::kBucketDone, "fc", sum, sum, {.bytes = kModel, .id = 0}),
                    event(TraceKind::kOptimizer, "AdamW", sum, end)}});
  }
  return run;
}

// DataParallel: the second device computes from 100 to 1,100 us, the first one updates from 1,200 to 2,200 us.
inline Run dp() {
  return {
      .name = "dp",
      .mode = "dp",
      .traces = {
          {.events = {event(TraceKind::kStep, "step", 0, 2'200, {.id = 1}),
                      event(TraceKind::kReplica, "replica", 0, 1'000, {.id = 0}),
                      event(TraceKind::kForward, "model", 0, 400), event(TraceKind::kBackward, "backward", 400, 1'000),
                      event(TraceKind::kReplica, "replica", 100, 1'100, {.id = 1}, 1),
                      event(TraceKind::kForward, "model", 100, 500, {}, 1),
                      event(TraceKind::kBackward, "backward", 500, 1'100, {}, 1),
                      event(TraceKind::kWait, "replicas", 1'000, 1'100),
                      event(TraceKind::kCopy, "gradients", 1'100, 1'200, {.bytes = kModel, .from = 1, .to = 0}),
                      event(TraceKind::kOptimizer, "AdamW", 1'200, 2'200)}}}};
}

// The run with all times multiplied.
inline Run scaled(Run run, std::int64_t percent) {
  for (Trace& trace : run.traces)
    for (TraceEvent& each : trace.events) each.begin = each.begin * percent / 100, each.end = each.end * percent / 100;
  return run;
}

inline std::string answer(const std::vector<Run>& runs, const std::string& question) {
  std::string questions;
  for (const report::Answer& each : answers(report::traced(runs))) {
    if (each.question == question) return each.text;
    questions += each.question + "\n";
  }
  return "none; there are:\n" + questions;
}

inline bool is_asked(const std::vector<Run>& runs, const std::string& question) {
  return !answer(runs, question).starts_with("none");
}

inline void count(Run& run, const report::Links& links) {
  run.gradient_bytes = kModel;
  run.is_counted = true;
  run.counters = {.steps = 1, .in_steps = links};
}

}  // namespace report_runs
