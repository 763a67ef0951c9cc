// Pipeline parallelism: the time in which the next stage copies a message of 1 MB while its sender computes, with an
// outbox and by `send`, and a short message, which is the time until the copy begins; and the time of a 1F1B step on two
// ranks against accumulation on one rank.
//
// Steps: four transformer blocks of width 512 with 8 heads, 8 micro-batches of one sequence of 256 tokens, every rank with
// one thread on a core of its own, without the optimizer. Each round runs both kinds in turn; a figure is the median over
// rounds of the slower rank's step. With equal stages, and no time for messages, two ranks take (8 + 1) / 16 = 0.5625 of
// the time of one.
#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <string>
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

// Seconds of a step. Pipelines of one rank are accumulation.
double time_of_step(int ranks) {
  constexpr int kSteps = 3;
  const Shared* const shared = bench::run_group(ranks, [&](const Group& group, Shared& shared) {
    const par::DeviceMesh mesh(group, {{"pp", ranks}});
    Blocks model(4, 512, 8);
    par::PipelineOptions options = {.chain = {"tokens", "blocks.*"}, .micro_batches_per_rank = kMicroBatches};
    if (ranks == 2) options.split_before = {"blocks.2"};
    par::Pipeline run(model, mesh["pp"], options);
    const ls::Tensor x = ls::randint(bench::kVocabulary, {kMicroBatches, 256}),
                     y = ls::randn({kMicroBatches, 256, 512});
    const auto step = [&] {
      for (const nn::Parameter& each : run.parameters()) each->set_grad(ls::Tensor());
      run.backward(
          x, y, [&](const ls::Tensor& in, const ls::Tensor& target) { return ls::square(model(in) - target).mean(); });
    };
    step();
    std::vector<double> seconds;
    for (int i = 0; i < kSteps; ++i) {
      shared.meet(ranks);
      const double begin = bench::seconds_now();
      step();
      seconds.push_back(bench::seconds_now() - begin);
    }
    shared.results[group->rank()][0] = bench::median(seconds);
  });
  return shared->greatest(ranks);
}

void compare_steps() {
  constexpr int kRounds = 5;
  std::map<int, std::vector<double>> seconds;
  for (int round = 0; round < kRounds; ++round) {
    for (const int ranks : {1, 2}) seconds[ranks].push_back(time_of_step(ranks));
  }
  for (const int ranks : {1, 2})
    bench::print_row(fmt::format("pipeline_512_ranks{}", ranks), bench::median(seconds[ranks]));
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
  if (bench::wanted("pipeline_512")) compare_steps();
}
