// The actions of a pipeline in a trace: every row of the schedule, in order, on every rank.
#include <doctest/doctest.h>

#include <vector>

#include "lockstep/parallel/schedule/schedule_internal.h"
#include "tests/support/groups.h"

namespace par = ls::parallel;
namespace nn = ls::nn;

namespace {

constexpr int kMicroBatches = 4;

std::vector<ls::TraceEvent> actions_in(const ls::Trace& trace) {
  std::vector<ls::TraceEvent> actions;
  for (const ls::TraceEvent& event : trace.events) {
    if (event.kind == ls::TraceKind::kAction) actions.push_back(event);
  }
  return actions;
}

std::vector<par::ScheduleAction> rows_of(const par::ScheduleTable& table, int rank) {
  par::ScheduleRows rows;
  for (int r = 0; r < table.ranks(); ++r) rows.push_back(table.actions(r));
  return par::with_messages(rows,
                            {table.ranks(), table.stages(), table.micro_batches()})[static_cast<std::size_t>(rank)];
}

// A step, and an evaluation after it, which has the forwards and their messages only.
void check_events(const par::ScheduleTable& table, const ls::Trace& trace, int rank) {
  std::vector<std::size_t> rows;
  const std::vector<par::ScheduleAction> all = rows_of(table, rank);
  for (std::size_t row = 0; row < all.size(); ++row) rows.push_back(row);
  for (std::size_t row = 0; row < all.size(); ++row) {
    const par::ActionKind kind = all[row].kind;
    if (kind == par::ActionKind::kForward || kind == par::ActionKind::kSendForward ||
        kind == par::ActionKind::kReceiveForward)
      rows.push_back(row);
  }
  const std::vector<ls::TraceEvent> events = actions_in(trace);
  REQUIRE(events.size() == rows.size());
  for (std::size_t i = 0; i < events.size(); ++i) {
    CHECK(events[i].labels.id == static_cast<std::int64_t>(rows[i]));
    CHECK(events[i].name == all[rows[i]].to_string());
    CHECK(events[i].labels.stage == all[rows[i]].stage);
    CHECK(events[i].labels.micro_batch == all[rows[i]].micro_batch);
    CHECK(events[i].labels.bytes == -1);
    if (i > 0) CHECK(events[i - 1].end <= events[i].begin);
  }
}

}  // namespace

TEST_CASE("a trace has every action of a pipeline's step, with stage, micro-batch and row") {
  for (const auto& table : {par::ScheduleTable::make(par::Schedule::k1F1B, 2, kMicroBatches),
                            par::ScheduleTable::make(par::Schedule::kZeroBubble, 2, kMicroBatches),
                            par::ScheduleTable::make(par::Schedule::kInterleaved, 2, kMicroBatches, 2)}) {
    with_group("shm", 2, [&](const Group& group) {
      nn::Sequential model{nn::Linear(3, 5), nn::GELU(), nn::Linear(5, 4), nn::Linear(4, 1)};
      const par::DeviceMesh mesh(group, {{"pp", 2}});
      par::Pipeline run(model, mesh["pp"], {.micro_batches_per_rank = kMicroBatches, .table = table});
      const ls::Tensor x = ls::ones({8, 3}), y = ls::ones({8, 1});
      const auto loss = [&](const ls::Tensor& x, const ls::Tensor& y) { return nn::mse_loss(run.module()(x), y); };
      ls::start_trace();
      run.backward(x, y, loss);
      run.evaluate(x, y, loss);
      const std::vector<ls::Trace> traces = par::gather_traces(*group, ls::stop_trace());
      for (std::size_t rank = 0; rank < traces.size(); ++rank)
        check_events(table, traces[rank], static_cast<int>(rank));
    });
  }
}

TEST_CASE("micro-batches without samples have no actions in a trace") {
  nn::Sequential model{nn::Linear(3, 2), nn::Linear(2, 1)};
  const par::DeviceMesh mesh(nullptr, {{"pp", 1}});
  par::Pipeline run(model, mesh["pp"], {.micro_batches_per_rank = kMicroBatches});
  ls::start_trace();
  run.backward(ls::ones({2, 3}), ls::ones({2, 1}),
               [&](const ls::Tensor& x, const ls::Tensor& y) { return nn::mse_loss(run.module()(x), y); });
  const std::vector<ls::TraceEvent> events = actions_in(ls::stop_trace());
  REQUIRE(events.size() == 2 * 2 + 1);
  CHECK(events.back().name == "0REDUCE_GRAD");
}
