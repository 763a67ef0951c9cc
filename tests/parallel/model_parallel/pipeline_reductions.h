// When the gradients of stages are reduced over replicas: from the end of a chunk's last backward, as the order of
// events in a trace shows; and what happens if a rank fails after that. Ranks are processes.
#pragma once

#include <algorithm>
#include <functional>
#include <string>
#include <vector>

#include <fmt/format.h>

#include "tests/parallel/model_parallel/faults.h"

namespace pipeline_reductions {

namespace par = ls::parallel;
namespace nn = ls::nn;
using ls::TraceEvent, ls::TraceKind;

constexpr int kMicroBatches = 4;      // of a rank
constexpr std::int64_t kWidth = 600;  // the gradients of a layer are a bucket of their own

struct Layer : nn::Module {
  explicit Layer(std::int64_t width) : linear(add<nn::Linear>("linear", width, width)) {}
  ls::Tensor forward(const ls::Tensor& x) const override {
    const ls::Tensor y = ls::tanh(linear(x));
    if (after) after(y);
    return y;
  }
  nn::Linear& linear;
  std::function<void(const ls::Tensor&)> after;
};

// One layer for each stage, or several.
struct Layers : nn::Module {
  explicit Layers(int count, std::int64_t width = kWidth) {
    for (int l = 0; l < count; ++l) list.push_back(Layer(width));
  }
  ls::Tensor forward(const ls::Tensor& in) const override {
    ls::Tensor x = in;
    for (nn::Module& layer : list) x = layer(x);
    return x;
  }
  nn::ModuleList& list = add<nn::ModuleList>("list");
};

struct Case {
  std::string axis;  // dp or fsdp
  par::Schedule schedule = par::Schedule::k1F1B;
  int chunks = 1;
  int stage = 3;
  int samples = kMicroBatches;  // of the second replica
};

inline par::ParallelOptions options_of(const Case& of) {
  return {.partition = {.micro_batches = 2 * kMicroBatches},
          .chain = {"list.*"},
          .schedule = of.schedule,
          .chunks_per_rank = of.chunks,
          .stage = of.stage,
          .units = {"list.*"}};
}

inline bool is_launch(const TraceEvent& event) {
  return event.kind == TraceKind::kBucketLaunched ||
         (event.kind == TraceKind::kCollective && event.name.starts_with("reduce_scatter "));
}

inline std::vector<TraceEvent> select(const ls::Trace& trace, const std::function<bool(const TraceEvent&)>& is_wanted) {
  std::vector<TraceEvent> events;
  std::ranges::copy_if(trace.events, std::back_inserter(events), is_wanted);
  return events;
}

inline TraceEvent action(const ls::Trace& trace, const std::string& name) {
  const std::vector<TraceEvent> found =
      select(trace, [&](const TraceEvent& event) { return event.kind == TraceKind::kAction && event.name == name; });
  REQUIRE(found.size() == 1);
  return found[0];
}

// Each chunk has one bucket or unit, which REDUCE_GRAD of the chunk's stage launches.
inline void check_launches(const ls::Trace& trace, int rank, int chunks) {
  const std::vector<TraceEvent> launches = select(trace, is_launch);
  REQUIRE(launches.size() == static_cast<std::size_t>(chunks));
  for (int chunk = 0; chunk < chunks; ++chunk) {
    const TraceEvent reduce = action(trace, fmt::format("{}REDUCE_GRAD", rank + 2 * chunk));
    const TraceEvent& launch = launches[static_cast<std::size_t>(chunks - 1 - chunk)];
    CHECK(launch.begin >= reduce.begin);
    CHECK(launch.begin <= reduce.end);
  }
}

inline void check_case(const std::string& backend, const Case& of) {
  with_group(backend, 4,
             [&](const Group& group) {
               const par::DeviceMesh mesh(group, {{"pp", 2}, {of.axis, 2}});
               const int rank = mesh["pp"].rank();
               const std::int64_t samples = mesh[of.axis].rank() == 0 ? kMicroBatches : of.samples;
               Layers model(2 * of.chunks);
               par::Parallel run(model, mesh, options_of(of));
               const ls::Tensor x = ls::ones({samples, kWidth});
               ls::start_trace();
               run.backward(x, x,
                            [&](const ls::Tensor& in, const ls::Tensor& y) { return nn::mse_loss(model(in), y); });
               const ls::Trace trace = ls::stop_trace();
               check_launches(trace, rank, of.chunks);
               if (of.chunks == 1 || samples < kMicroBatches) return;
               const std::string last = fmt::format("{}B{}", rank, kMicroBatches - 1);  // of chunk 0
               CHECK(select(trace, is_launch)[0].begin < action(trace, last).begin);
             },
             {.reduction = par::Reduction::kCanonical});
}

inline void check_cases(const std::string& backend, const std::vector<Case>& cases) {
  for (const Case& each : cases) {
    CAPTURE(each.axis);
    CAPTURE(par::name(each.schedule));
    CAPTURE(each.stage);
    CAPTURE(each.samples);
    check_case(backend, each);
  }
}

constexpr const char* kText = "no more input";

inline std::string error_in(const std::function<void()>& step) {
  try {
    step();
  } catch (const std::exception& error) {
    return error.what();
  }
  return "";
}

// Calls `event` in the last backward of chunk 0, when reductions of chunk 1 are in flight. `forwards` counts those of the
// layer.
inline void call_in_last_backward(Layer& layer, int& forwards, const std::function<void()>& event) {
  layer.after = [&forwards, event](const ls::Tensor& y) {
    if (++forwards == kMicroBatches) y.register_hook([event](const ls::Tensor&) { return event(), ls::Tensor(); });
  };
}

// The last backward of chunk 0 throws on global rank `culprit`, after the bucket or unit of chunk 1 was launched.
inline void check_exception(const std::string& backend, const Case& of, int culprit) {
  with_group(backend, 4, [&](const Group& group) {
    const par::DeviceMesh mesh(group, {{"pp", 2}, {of.axis, 2}});
    Layers model(2 * of.chunks);
    par::Parallel run(model, mesh, options_of(of));
    const ls::Tensor x = ls::ones({kMicroBatches, kWidth});
    const auto step = [&] {
      run.backward(x, x, [&](const ls::Tensor& in, const ls::Tensor& y) { return nn::mse_loss(model(in), y); });
    };
    step();
    int forwards = 0;
    const int stage = mesh["pp"].rank();
    if (group->rank() == culprit)
      call_in_last_backward(dynamic_cast<Layer&>(model.list[stage]), forwards, [] { throw ls::IoError(kText); });
    std::vector<double> before;
    for (const nn::Parameter& each : run.parameters())
      before.push_back(each->grad().numel() > 0 ? ls::sum(each->grad()).item<double>() : 0);
    ls::start_trace();
    const std::string text = error_in(step);
    const ls::Trace trace = ls::stop_trace();
    CHECK_MESSAGE(contains(text, kText), text);
    if (group->rank() == culprit) {
      CHECK_MESSAGE(
          contains(text, fmt::format("micro-batch {} in stage {} (rank {}, row ", kMicroBatches - 1, stage, stage)),
          text);
      action(trace, fmt::format("{}REDUCE_GRAD", stage + 2));
      if (of.axis == "dp") CHECK(select(trace, is_launch).size() == 1);  // a complete reduce_scatter is an event
    } else {
      CHECK_MESSAGE(contains(text, "has failed: "), text);
    }
    std::size_t k = 0;  // the gradients of the step before are as they were
    for (const nn::Parameter& each : run.parameters()) {
      const double want = before[k++];
      CHECK(want == (each->grad().numel() > 0 ? ls::sum(each->grad()).item<double>() : 0));
    }
    const std::string next = error_in(step);
    CHECK_MESSAGE(contains(next, "failed"), next);
    CHECK_MESSAGE(contains(next, kText), next);
  });
}

inline void check_exceptions(const std::string& backend) {
  for (const Case& each : {Case{.axis = "dp", .schedule = par::Schedule::kInterleaved, .chunks = 2},
                           Case{.axis = "fsdp", .schedule = par::Schedule::kInterleaved, .chunks = 2, .stage = 2},
                           Case{.axis = "fsdp", .schedule = par::Schedule::kInterleaved, .chunks = 2, .stage = 3}}) {
    for (const int culprit : {0, 3}) {
      CAPTURE(each.axis);
      CAPTURE(each.stage);
      CAPTURE(culprit);
      check_exception(backend, each, culprit);
    }
  }
}

// A rank ends or stops there.
struct Fault {
  std::string axis;
  int signal, victim;
  std::string describe() const { return fmt::format("{}, signal {} of rank {}", axis, signal, victim); }
};

inline void check_faults(const char* backend, const std::vector<Fault>& faults) {
  const auto run_rank = [&](const Fault& fault, const Group& group, model_faults::Board& board) {
    const par::DeviceMesh mesh(group, {{"pp", 2}, {fault.axis, 2}});
    const Case of{.axis = fault.axis, .schedule = par::Schedule::kInterleaved, .chunks = 2};
    Layers model(2 * of.chunks);
    par::Parallel run(model, mesh, options_of(of));
    const ls::Tensor x = ls::ones({kMicroBatches, kWidth});
    int forwards = -kMicroBatches;  // in the second step
    if (group->rank() == fault.victim)
      call_in_last_backward(dynamic_cast<Layer&>(model.list[mesh["pp"].rank()]), forwards,
                            [&] { board.strike(fault.signal); });
    const auto step = [&] {
      run.backward(x, x, [&](const ls::Tensor& in, const ls::Tensor& y) { return nn::mse_loss(model(in), y); });
    };
    CHECK(error_in(step).empty());
    model_faults::check_report(fault.signal, fault.victim, board, error_in(step), {backend, 4});
  };
  model_faults::check_faults(faults, run_rank, {backend, 4});
}

inline void check_ends(const char* backend) {
  for (const char* axis : {"dp", "fsdp"})
    check_faults(backend, {{axis, SIGKILL, 0}, {axis, SIGKILL, 1}, {axis, SIGKILL, 2}, {axis, SIGKILL, 3}});
}

}  // namespace pipeline_reductions
