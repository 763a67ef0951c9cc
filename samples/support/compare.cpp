#include "support/compare.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <optional>
#include <string>
#include <vector>

#include "support/compare_bits.h"
#include "support/compare_runs.h"
#include "support/result.h"
#include "support/strategy.h"
#include "support/timeline.h"

namespace samples {
namespace {

namespace ls = lockstep;
using ls::parallel::Phase;

void print_intro(const Options& options) {
  fmt::print(
      "{}: the same model, data and seed with four strategies. A step has a batch of {} examples, which the last\n"
      "three strategies split into {} micro-batches. A device is one thread:\n"
      "  single      one device\n"
      "  accumulate  one device, one micro-batch after another\n"
      "  dp          DataParallel: one process, {} devices, {}\n"
      "  ddp         DistributedDataParallel: {} processes, one device each{}\n\n",
      options.program, options.batch, options.micro_batches, options.micro_batches,
      options.loss == "outside" ? "the loss computed on the first one" : "each computes its own loss", options.nproc,
      options.backend == "shm" ? "" : ", over " + options.backend);
  std::fflush(stdout);
}

void print_table(const std::vector<Result>& results) {
  fmt::print(
      "                      train   test      test  ----------- bytes moved per step, all links -----------\n"
      "strategy     steps/s   loss   loss  accuracy   inputs  parameters  outputs  loss gradient  gradients  "
      "parameter hash\n");
  for (const Result& r : results) {
    const auto bytes = [&](Phase phase) { return r.moved.per_step(phase); };
    fmt::print("{:<10} {:>9.0f}  {:.3f}  {:.3f}     {:.3f} {:>8.0f} {:>11.0f} {:>8.0f} {:>14.0f} {:>10.0f}  {}\n",
               r.mode, r.steps_per_second, r.train.loss, r.test.loss, r.test.accuracy, bytes(Phase::kInputs),
               bytes(Phase::kParameters), bytes(Phase::kOutputs), bytes(Phase::kLossGradient), bytes(Phase::kGradients),
               r.hash);
  }
}

// Says in a few sentences what the figures mean.
void print_meaning(const Options& options, const std::vector<Result>& results) {
  const double single = results[0].steps_per_second, dp = results[2].steps_per_second / single,
               ddp = results[3].steps_per_second / single;
  fmt::print("\nCompared with one device, dp is {:.2f} and ddp {:.2f} times as fast. ", dp, ddp);
  if (std::min(dp, ddp) > 1)
    fmt::print(
        "The batch is fixed (strong scaling): each device\n"
        "computes smaller micro-batches, which cost more per example, cores share caches and memory, devices wait\n"
        "for each other, and the optimizer's step is not divided: with dp one device runs it, with ddp each rank.\n");
  else
    fmt::print("A step takes {:.0f} us on one device, less\nthan {}.\n", 1e6 / single,
               ddp > 1  ? "dp needs to pass work to another thread"
               : dp > 1 ? "ddp needs to pass work to another process"
                        : "it takes to pass work to another thread or process");
  if (options.nproc == 1) return;
  fmt::print(
      "In each step dp sends the parameters to the other devices, and the gradients come back; ddp sums the gradients\n"
      "in an all-reduce: each of n ranks sends 2 (n-1)/n times the size of all buckets, which is {:.0f} bytes here.\n",
      results[3].moved.per_step(Phase::kGradients) / static_cast<double>(2 * (options.nproc - 1)));
}

std::int64_t sum(const PhaseBytes& bytes) {
  std::int64_t sum = 0;
  for (const std::int64_t each : bytes) sum += each;
  return sum;
}

void print_least_accuracy(const std::vector<Result>& results) {
  const auto text = [](const Result& r) { return fmt::format("{:.3f}", r.test.accuracy); };
  const auto [least, most] = std::ranges::minmax_element(results, {}, text);
  fmt::print("test accuracy {}{} with every strategy\n", text(*least), text(*least) == text(*most) ? "" : " or more");
}

// The table of --strategies.
void print_costs(const std::vector<Result>& results) {
  fmt::print(
      "                                 ---------------- memory of a rank, bytes ---------------   -- moved per step, "
      "bytes --\n"
      "strategy       steps/s  idle %  parameters   gradients   optimizer    buffers       total   all links     host "
      "copies  parameter hash\n");
  for (const Result& r : results) {
    double moved = 0;
    for (const Phase phase :
         {Phase::kInputs, Phase::kParameters, Phase::kOutputs, Phase::kLossGradient, Phase::kGradients, Phase::kBuffers,
          Phase::kKeysValues, Phase::kActivations, Phase::kActivationGradients})
      moved += r.moved.per_step(phase);
    const std::string idle = std::isnan(r.idle) ? "-" : fmt::format("{:.1f}", 100 * r.idle);
    fmt::print("{:<14} {:>7.0f} {:>7} {:>11} {:>11} {:>11} {:>10} {:>11} {:>11.0f} {:>15.0f}  {}\n", r.mode,
               r.steps_per_second, idle, r.memory.parameters, r.memory.gradients, r.memory.optimizer, r.memory.units,
               r.memory.total(), moved, r.moved.per_step(Phase::kOffload), r.hash);
  }
  fmt::print(
      "\nMemory is that of ShardedDataParallel::plan and its closed forms, on the rank with most; \"optimizer\" has "
      "two buffers\n"
      "per parameter (Adam). Activations are not counted.\n");
}

// Says why a later stage has no less memory, if that is so: it surprises who knows what ZeRO is for.
void print_missing_savings(const std::vector<Result>& results) {
  const Result* before = nullptr;
  for (const Result& r : results) {
    const std::optional<Sharded> sharded = sharded_of(r.mode);
    if (r.mode != "ddp" && (!sharded || sharded->offloads)) continue;
    if (before && r.memory.units > 0 && r.memory.total() >= before->memory.total()) {
      fmt::print(
          "{} takes no less memory than {} here: besides its shards a rank holds buffers of whole units (layers), "
          "which\n"
          "are not divided among the ranks. More layers and more ranks show what sharding saves, for example\n"
          "  char_gpt --strategy compare --strategies ddp,zero1,zero2,zero3 --micro-batches 4 --nproc 4\n",
          r.mode, before->mode);
      return;
    }
    before = &r;
  }
}

// The bytes along each axis of a mesh, and the share of the step in which ranks of a pipeline wait.
void print_axes(const std::vector<Result>& results) {
  for (const Result& r : results) {
    std::vector<std::string> axes;
    for (const auto& [axis, bytes] : r.moved.by_axis)
      if (bytes > 0)
        axes.push_back(
            fmt::format("{:.0f} along {}", static_cast<double>(bytes) / static_cast<double>(r.moved.steps), axis));
    if (!axes.empty()) fmt::print("{} moves per step, in bytes: {}.\n", r.mode, fmt::join(axes, ", "));
  }
  if (std::ranges::any_of(results, [](const Result& r) { return !std::isnan(r.idle); }))
    fmt::print(
        "Idle is the share of a step in which a rank waits for other stages, by the schedule, if all stages take "
        "equally long.\n");
}

// Another order of sums changes the last digits of the loss.
void print_other_orders(const Options& options, const std::vector<Result>& results) {
  for (const SameOrder& order : orders_of(options)) {
    for (const std::string& name : order.names) {
      if (order.reason.empty()) continue;
      const auto& r = *std::ranges::find(results, name, &Result::mode);
      fmt::print("{} has {}, and so another order of sums: test loss {:.9g}, {} {:.9g}.\n", name, order.reason,
                 r.test.loss, results[0].mode, results[0].test.loss);
    }
  }
}

void print_same_bits(const Options& options) {
  for (const SameOrder& order : orders_of(options))
    if (order.names.size() > 1) fmt::print("{} end with bitwise identical parameters.\n", order.text());
}

// Compares the strategies that --strategies lists.
int compare_costs(const Options& options, Train train) {
  if (!options.quiet)
    fmt::print("{}: the same model, data and seed; {} micro-batches per step, {} ranks with one thread each\n\n",
               options.program, options.micro_batches, options.nproc);
  std::fflush(stdout);
  std::vector<Result> results;
  if (const int code = train_all(options, train, results); code != 0) return code;
  write_traces_of_all(options);
  print_costs(results);
  print_missing_savings(results);
  print_axes(results);
  if (!have_same_bits(options, results)) return 1;
  print_other_orders(options, results);
  print_same_bits(options);
  fmt::print("\n");
  print_written(options);
  fmt::print("files       {}/{{{}}}/: model.safetensors, metrics.jsonl, result.json\n\n", options.out,
             fmt::join(compared(options), ","));
  print_least_accuracy(results);
  return 0;
}

}  // namespace

int compare(const Options& options, Train train) {
  check_comparable(options);
  // A device has one thread with every strategy, so that n devices have n times the processor. Ranks inherit the
  // variable.
  ls::set_num_threads(1);
  setenv("LOCKSTEP_NUM_THREADS", "1", 1);
  if (!options.compared.empty()) return compare_costs(options, train);

  if (!options.quiet) print_intro(options);
  std::vector<Result> results;
  if (const int code = train_all(options, train, results); code != 0) return code;
  write_traces_of_all(options);

  print_table(results);
  print_meaning(options, results);
  const Result &single = results[0], &accumulate = results[1];
  fmt::print(
      "Once, before the first step, ddp moved {} bytes, to compare the models and to send rank 0's parameters.\n",
      sum(results[3].moved.at_start));
  if (!have_same_bits(options, results)) return 1;
  fmt::print("{} end with bitwise identical parameters. {}\n", orders_of(options)[0].text(),
             single.hash == accumulate.hash ? "So does single, this time."
                                            : "single differs: it adds the examples' gradients in another order.");
  fmt::print("\n");
  print_written(options);
  fmt::print(
      "files       {}/{{single,accumulate,dp,ddp}}/: model.safetensors, metrics.jsonl, result.json\n"
      "try next    --strategy ddp: one strategy, epoch by epoch\n"
      "            --strategy compare --micro-batches 4 --nproc 4: four ranks\n"
      "            char_gpt --strategy compare --strategies ddp,zero1,zero2,zero3 --micro-batches 4 --nproc 4: the "
      "memory that\n            sharding saves\n\n",
      options.out);
  print_least_accuracy(results);
  return 0;
}

}  // namespace samples
