#include "support/compare.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cstdlib>
#include <filesystem>
#include <string>
#include <vector>

#include "support/ranks.h"
#include "support/result.h"
#include "support/step.h"
#include "support/stop.h"
#include "support/timeline.h"
#include "tools/report/chrome_trace.h"

namespace samples {
namespace {

using ls::parallel::Phase;

Options in_mode(const Options& options, const std::string& mode) {
  Options result = options;
  result.mode = mode;
  result.out = (std::filesystem::path(options.out) / mode).string();
  result.save = (std::filesystem::path(result.out) / "checkpoint.safetensors").string();
  result.quiet = true;
  result.trace.clear();
  result.report.clear();
  result.explain = false;
  if (mode != "ddp") result.inject.clear();
  if (is_traced(options)) result.timeline = (std::filesystem::path(result.out) / "timeline.json").string();
  return result;
}

std::string result_file(const Options& options) {
  return (std::filesystem::path(options.out) / "result.json").string();
}

// Throws unless the modes are guaranteed to compute the same bits.
void check_comparable(const Options& options) {
  check_split(options, static_cast<int>(options.nproc));
  if (!std::has_single_bit(static_cast<std::uint64_t>(options.micro_batches / options.nproc)))
    throw ls::InvalidArgument(
        fmt::format("--mode compare: {} micro-batches on {} ranks; the bits are the same only if each rank has 1, 2, "
                    "4, 8, ... micro-batches",
                    options.micro_batches, options.nproc));
  if (options.loss == "outside" && !has_same_bits_outside(options))
    throw ls::InvalidArgument(
        fmt::format("--mode compare: with {} micro-batches dp's bits differ when the loss is taken outside; take "
                    "--loss replica, or "
                    "1, 2, 4, 8, ... micro-batches",
                    options.micro_batches));
}

void print_intro(const Options& options) {
  fmt::print(
      "{}: the same model, data and seed in four modes. A step has a batch of {} examples, which the last three\n"
      "modes split into {} micro-batches. A device is one thread:\n"
      "  single      one device\n"
      "  accumulate  one device, one micro-batch after another\n"
      "  dp          DataParallel: one process, {} devices, {}\n"
      "  ddp         DistributedDataParallel: {} processes with a device each{}\n\n",
      options.program, options.batch, options.micro_batches, options.micro_batches,
      options.loss == "outside" ? "the loss computed on the first one" : "each computes its own loss", options.nproc,
      options.backend == "shm" ? "" : ", over " + options.backend);
  std::fflush(stdout);
}

// A mode prints nothing here, and may take minutes.
void print_progress(const Options& options, std::size_t number, const char* mode) {
  if (!options.quiet) fmt::print(stderr, "{} of 4: {} ...\n", number, mode);
}

void print_table(const std::vector<Result>& results) {
  fmt::print(
      "                      train   test      test  ----------- bytes moved per step, all links -----------\n"
      "mode         steps/s   loss   loss  accuracy   inputs  parameters  outputs  loss gradient  gradients  "
      "parameter hash\n");
  for (const Result& r : results) {
    const auto bytes = [&](Phase phase) { return r.moved.per_step(phase); };
    fmt::print("{:<10} {:>9.0f}  {:.3f}  {:.3f}     {:.3f} {:>8.0f} {:>11.0f} {:>8.0f} {:>14.0f} {:>10.0f}  {}\n",
               r.mode, r.steps_per_second, r.train.loss, r.test.loss, r.test.accuracy, bytes(Phase::kInputs),
               bytes(Phase::kParameters), bytes(Phase::kOutputs), bytes(Phase::kLossGradient), bytes(Phase::kGradients),
               r.hash);
  }
}

// Says in two sentences what the figures mean.
void print_meaning(const Options& options, const std::vector<Result>& results) {
  const double single = results[0].steps_per_second, dp = results[2].steps_per_second / single,
               ddp = results[3].steps_per_second / single;
  fmt::print("\nIn the time of one step of single, dp makes {:.2f} and ddp {:.2f} steps{}.\n", dp, ddp,
             std::max(dp, ddp) > 1 ? "" : fmt::format(": {:.0f} us of work are too little to share", 1e6 / single));
  if (options.nproc == 1) return;
  fmt::print(
      "In each step dp sends the parameters to the other devices, and the gradients come back; ddp sums the gradients\n"
      "by an all-reduce, in which each of n ranks sends 2 (n-1)/n of its buckets, here of {:.0f} bytes.\n",
      results[3].moved.per_step(Phase::kGradients) / static_cast<double>(2 * (options.nproc - 1)));
}

void write_traces_of_all(const Options& options) {
  if (!is_traced(options)) return;
  std::vector<ls::Trace> traces;
  for (const char* mode : {"single", "accumulate", "dp", "ddp"}) {
    for (ls::Trace& trace : report::read_chrome_trace(in_mode(options, mode).timeline))
      traces.push_back(std::move(trace));
  }
  write_traces(options, traces);
}

std::int64_t sum(const PhaseBytes& bytes) {
  std::int64_t sum = 0;
  for (const std::int64_t each : bytes) sum += each;
  return sum;
}

}  // namespace

int compare(const Options& options, Train train) {
  check_comparable(options);
  if (!options.quiet) print_intro(options);

  // A device has one thread in every mode, so that n devices have n times the processor. Ranks inherit the variable.
  ls::set_num_threads(1);
  setenv("LOCKSTEP_NUM_THREADS", "1", 1);

  // Mode ddp first: processes are best started before this process has threads.
  const Options ddp = in_mode(options, "ddp");
  std::filesystem::remove(result_file(ddp));
  print_progress(options, 1, "ddp");
  if (const int code = start_ranks(ddp); code != 0) return code;
  install_stop_handler();
  std::vector<Result> results;
  for (const char* mode : {"single", "accumulate", "dp"}) {
    print_progress(options, results.size() + 2, mode);
    const Options here = in_mode(options, mode);
    if (const int code = train(here); code != 0) return code;
    results.push_back(read_result(result_file(here)));
  }
  results.push_back(read_result(result_file(ddp)));
  if (!options.quiet) fmt::print(stderr, "\n");
  write_traces_of_all(options);

  print_table(results);
  print_meaning(options, results);
  const Result &single = results[0], &accumulate = results[1];
  const bool equal = std::all_of(results.begin() + 1, results.end(),
                                 [&](const Result& result) { return result.hash == accumulate.hash; });
  fmt::print("Before the first step ddp moved {} more bytes, to compare the models and to send rank 0's parameters.\n",
             sum(results[3].moved.at_start));
  if (!equal) {
    fmt::print(stderr, "{}: accumulate, dp and ddp should end with bitwise identical parameters, and do not.\n",
               options.program);
    return 1;
  }
  fmt::print("accumulate, dp and ddp end with bitwise identical parameters. {}\n",
             single.hash == accumulate.hash ? "So does single, this time."
                                            : "single differs: it adds the examples' gradients in another order.");
  fmt::print("\n");
  print_written(options);
  fmt::print(
      "files       {}/{{single,accumulate,dp,ddp}}/: model.safetensors, metrics.jsonl, result.json\n"
      "try next    the same with --mode ddp (one of them, epoch by epoch), --micro-batches 4 --nproc 4, --loss "
      "replica\n\n",
      options.out);
  const auto least = std::min_element(results.begin(), results.end(), [](const Result& a, const Result& b) {
    return a.test.accuracy < b.test.accuracy;
  });
  fmt::print("test accuracy {:.3f}\n", least->test.accuracy);
  return 0;
}

}  // namespace samples
