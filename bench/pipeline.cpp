// Pipeline parallelism: the time in which the next stage copies a message of 1 MB while its sender computes, with an
// outbox and by `send`, and a short message, which is the time until the copy begins; and the time of a step on two
// ranks, by schedule, against accumulation on one rank.
//
// Steps: four transformer blocks of width 512 with 8 heads, 8 micro-batches of two sequences of 128 tokens, every rank
// with one thread on a core of its own, without the optimizer; peers/torch_pipeline.py has the same model and step. Each
// round runs all kinds in turn; a figure is the median over rounds of the slower rank's step. With equal stages, and no
// time for messages, 1F1B on two ranks takes (8 + 1) / 16 = 0.5625 of the time of one, zb1p about
// 0.526.
//
// The order of the schedules on four ranks: layers that wait, as the host of an accelerator does, instead of computing,
// so that fewer cores than ranks change nothing; measured, and simulated with the same times of each stage.
#include <algorithm>
#include <chrono>
#include <string>
#include <thread>
#include <vector>

#include "lockstep/parallel/model_parallel/stage_messages_internal.h"
#include "support/blocks.h"
#include "support/ranks.h"
#include "support/timing.h"

namespace ls = lockstep;
namespace nn = lockstep::nn;
namespace par = lockstep::parallel;

namespace {

using bench::Blocks;
using bench::Group;
using bench::Shared;

constexpr int kMicroBatches = 8;

void compute_for(double seconds) {
  for (const double begin = bench::seconds_now(); bench::seconds_now() - begin < seconds;) {
  }
}

// Seconds from the end of the sender's call, after which it computes for 20 ms, to the end of the receiver's.
double arrival(std::int64_t elements, bool with_outbox) {
  constexpr int kMessages = 30;
  const Shared* const shared = bench::run_group(2, [&](const Group& group, Shared& shared) {
    par::StageMessages messages(group, 2);
    if (with_outbox) messages.grow_outboxes(1 << 20);
    const ls::Tensor tensor = ls::ones({elements});
    std::vector<double> seconds;
    for (int m = 0; m < kMessages; ++m) {
      shared.meet(2);
      if (group->rank() == 0) {
        compute_for(2e-3);  // the receiver waits by then
        messages.send({par::ActionKind::kSendForward, 0, m}, {tensor});
        shared.results[0][0] = bench::seconds_now();
        compute_for(20e-3);
        messages.end_step();
      } else {
        messages.receive({par::ActionKind::kReceiveForward, 1, m}, {});
        const double end = bench::seconds_now();
        shared.meet(2);
        seconds.push_back(std::max(0.0, end - shared.results[0][0]));
        continue;
      }
      shared.meet(2);
    }
    if (group->rank() == 1) shared.results[1][0] = bench::median(seconds);
  });
  return shared->results[1][0];
}

struct Variant {
  const char* name;
  int ranks;
  par::Schedule schedule;
};
constexpr Variant kVariants[] = {{"one_rank", 1, par::Schedule::k1F1B},  // accumulation
                                 {"gpipe", 2, par::Schedule::kGPipe},
                                 {"1f1b", 2, par::Schedule::k1F1B},
                                 {"zb1p", 2, par::Schedule::kZeroBubble}};

// Seconds of a step.
double time_of(const Variant& of) {
  const Shared* const shared = bench::run_group(of.ranks, [&](const Group& group, Shared& shared) {
    const par::DeviceMesh mesh(group, {{"pp", of.ranks}});
    Blocks model(4, 512, 8);
    par::PipelineOptions options = {
        .chain = {"tokens", "blocks.*"}, .schedule = of.schedule, .micro_batches_per_rank = kMicroBatches};
    if (of.ranks == 2) options.split_before = {"blocks.2"};
    par::Pipeline run(model, mesh["pp"], options);
    const ls::Tensor x = ls::randint(bench::kVocabulary, {2 * kMicroBatches, 128}),
                     y = ls::randn({2 * kMicroBatches, 128, 512});
    const auto step = [&] {
      for (const nn::Parameter& each : run.parameters()) each->set_grad(ls::Tensor());
      run.backward(
          x, y, [&](const ls::Tensor& in, const ls::Tensor& target) { return ls::square(model(in) - target).mean(); });
    };
    step();
    shared.results[group->rank()][0] = bench::time_together(shared, of.ranks, step);
  });
  return shared->greatest(of.ranks);
}

constexpr std::chrono::milliseconds kWait{4};  // of a layer: in forward, for its input's gradient, for its weight's

// A layer of one weight that waits instead of computing.
struct WaitingLayer : nn::Module {
  nn::Parameter& weight = add_parameter("weight", ls::ones({1}));
  WaitingLayer() { weight->register_hook(wait); }
  ls::Tensor forward(const ls::Tensor& x) const override {
    std::this_thread::sleep_for(kWait);
    if (x.requires_grad()) x.register_hook(wait);
    return x * weight;
  }

 private:
  static ls::Tensor wait(const ls::Tensor& gradient) {
    std::this_thread::sleep_for(kWait);
    return gradient;
  }
};

struct WaitingLayers : nn::Sequential {
  static constexpr int kLayers = 8;
  WaitingLayers() {
    for (int i = 0; i < kLayers; ++i) add<WaitingLayer>(std::to_string(i));
  }
};

struct Waiting {
  const char* name;
  par::Schedule schedule;
  int chunks;  // on each rank
};
constexpr int kWaitingRanks = 4;
constexpr Waiting kWaiting[] = {{"gpipe", par::Schedule::kGPipe, 1},
                                {"1f1b", par::Schedule::k1F1B, 1},
                                {"interleaved", par::Schedule::kInterleaved, 2},
                                {"zb1p", par::Schedule::kZeroBubble, 1}};

double measured(const Waiting& of) {
  const auto run_rank = [&](const Group& group, Shared& shared) {
    const par::DeviceMesh mesh(group, {{"pp", kWaitingRanks}});
    WaitingLayers model;
    par::Pipeline run(model, mesh["pp"],
                      {.schedule = of.schedule, .micro_batches_per_rank = kMicroBatches, .chunks_per_rank = of.chunks});
    const ls::Tensor x = ls::randn({kMicroBatches, 16});
    const auto step = [&] {
      run.backward(x, x, [&](const ls::Tensor& in, const ls::Tensor&) { return model(in).mean(); });
    };
    step();
    shared.results[group->rank()][0] = bench::time_together(shared, kWaitingRanks, step);
  };
  return bench::run_group(kWaitingRanks, run_rank)->greatest(kWaitingRanks);
}

// The first layer's input needs no gradient.
double simulated(const Waiting& of) {
  const int stages = kWaitingRanks * of.chunks, layers = WaitingLayers::kLayers / stages;
  const double one = std::chrono::duration<double>(kWait).count(), all = layers * one;
  std::vector<par::StageCosts> costs(static_cast<std::size_t>(stages),
                                     {.forward = all, .backward_input = all, .backward_weight = all});
  costs[0].backward_input -= one;
  return simulate(par::ScheduleTable::make(of.schedule, kWaitingRanks, kMicroBatches, of.chunks), costs, {}).seconds;
}

}  // namespace

int main() {
  constexpr std::int64_t kMegabyte = 1 << 18, kLine = 16;  // elements
  const auto print_arrival = [](const char* name, std::int64_t elements, bool with_outbox) {
    if (bench::wanted(name)) bench::print_row(name, arrival(elements, with_outbox));
  };
  print_arrival("boundary_1mb_outbox", kMegabyte, true);
  print_arrival("boundary_64b_outbox", kLine, true);
  print_arrival("boundary_1mb_send", kMegabyte, false);
  if (bench::wanted("pipeline_512")) bench::compare_times("pipeline_512_", kVariants, time_of);
  if (!bench::wanted("pipeline_waiting")) return 0;
  bench::compare_times("pipeline_waiting_", kWaiting, measured);
  for (const Waiting& of : kWaiting)
    bench::print_row(std::string("pipeline_waiting_simulated_") + of.name, simulated(of));
}
