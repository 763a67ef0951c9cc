#include "support/compare.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <bit>
#include <cstdlib>
#include <filesystem>
#include <iterator>
#include <string>
#include <vector>

#include "support/mesh.h"
#include "support/ranks.h"
#include "support/result.h"
#include "support/step.h"
#include "support/stop.h"
#include "support/strategy.h"
#include "support/timeline.h"
#include "tools/diff/text.h"
#include "tools/report/chrome_trace.h"

namespace samples {
namespace {

using ls::parallel::Phase;

Options in_mode(const Options& options, const std::string& mode) {
  Options result = options;
  result.strategy = mode;
  result.out = (std::filesystem::path(options.out) / mode).string();
  result.save = (std::filesystem::path(result.out) / "checkpoint.safetensors").string();
  result.quiet = true;
  result.trace.clear();
  result.report.clear();
  result.explain = false;
  if (!has_ranks(mode)) result.inject.clear();
  if (!has_mesh(mode)) result.mesh.clear();
  if (is_traced(options)) result.timeline = (std::filesystem::path(result.out) / "timeline.json").string();
  return result;
}

std::string result_file(const Options& options) {
  return (std::filesystem::path(options.out) / "result.json").string();
}

// The strategies to compare, in the order of the table.
std::vector<std::string> compared(const Options& options) {
  if (options.compared.empty()) return {"single", "accumulate", "dp", "ddp"};
  std::vector<std::string> names;
  for (const std::string& each : options.compared) {
    const std::string name = strategy_named(each);
    if (std::ranges::find(names, name) == names.end()) names.push_back(name);
  }
  return names;
}

// Throws unless the strategies are guaranteed to compute the same bits.
void check_comparable(const Options& options) {
  const std::vector<std::string> names = compared(options);
  const bool has_dp = std::ranges::find(names, "dp") != names.end();
  const int ranks = std::ranges::any_of(names, has_ranks) ? static_cast<int>(options.nproc) : 1;
  for (const std::string& name : names) {
    const Options here = in_mode(options, name);
    const int sharing = data_ranks(here, ranks);
    if (name != "single") check_split(here, ranks);
    if (name != "single" && !std::has_single_bit(static_cast<std::uint64_t>(options.micro_batches / sharing)))
      throw ls::InvalidArgument(
          fmt::format("--strategy compare: {} micro-batches on {} ranks; the bits are the same only if each rank has "
                      "1, 2, 4, 8, ... micro-batches",
                      options.micro_batches, sharing));
  }
  if (has_dp && options.loss == "outside" && !has_same_bits_outside(options))
    throw ls::InvalidArgument(
        fmt::format("--strategy compare: with {} micro-batches dp's bits differ when the loss is taken outside; take "
                    "--loss replica, or "
                    "1, 2, 4, 8, ... micro-batches",
                    options.micro_batches));
}

void print_intro(const Options& options) {
  fmt::print(
      "{}: the same model, data and seed with four strategies. A step has a batch of {} examples, which the last\n"
      "three strategies split into {} micro-batches. A device is one thread:\n"
      "  single      one device\n"
      "  accumulate  one device, one micro-batch after another\n"
      "  dp          DataParallel: one process, {} devices, {}\n"
      "  ddp         DistributedDataParallel: {} processes with a device each{}\n\n",
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
  fmt::print(
      "\nCompared with one device, dp is {:.2f} and ddp {:.2f} times as fast: {}.\n", dp, ddp,
      std::max(dp, ddp) > 1
          ? "the batch is fixed (strong scaling), and each device\n"
            "repeats what is not split, such as the optimizer's step"
          : fmt::format("a step takes {:.0f} us on one device, less\nthan it costs to pass work to another thread or "
                        "process",
                        1e6 / single));
  if (options.nproc == 1) return;
  fmt::print(
      "In each step dp sends the parameters to the other devices, and the gradients come back; ddp sums the gradients\n"
      "in an all-reduce: each of n ranks sends 2 (n-1)/n times the size of its buckets ({:.0f} bytes here).\n",
      results[3].moved.per_step(Phase::kGradients) / static_cast<double>(2 * (options.nproc - 1)));
}

void write_traces_of_all(const Options& options) {
  if (!is_traced(options)) return;
  std::vector<ls::Trace> traces;
  for (const std::string& name : compared(options)) {
    for (ls::Trace& trace : report::read_chrome_trace(in_mode(options, name).timeline))
      traces.push_back(std::move(trace));
  }
  write_traces(options, traces);
}

std::int64_t sum(const PhaseBytes& bytes) {
  std::int64_t sum = 0;
  for (const std::int64_t each : bytes) sum += each;
  return sum;
}

// With LOCKSTEP_RECORD each strategy records its run in a subdirectory.
class Records {
 public:
  Records() {
    if (const char* const directory = std::getenv(kVariable)) directory_ = directory;
  }
  ~Records() {
    if (!directory_.empty()) ::setenv(kVariable, directory_.c_str(), 1);
  }
  Records(const Records&) = delete;
  Records& operator=(const Records&) = delete;

  // The runs that follow, in this process and in ranks, are those of the strategy.
  void begin(const std::string& name) const {
    if (!directory_.empty()) ::setenv(kVariable, of(name).c_str(), 1);
  }
  // The first difference of the runs of two strategies, in words. The gradients of dp with a loss outside are those of the
  // whole batch's mean.
  std::string difference(const std::string& a, const std::string& b, bool has_gradients) const {
    if (directory_.empty())
      return "Run it again with LOCKSTEP_RECORD=DIRECTORY in the environment, to see where they first differ.\n";
    return diff::as_text(diff::compare(diff::read_run(of(a)), diff::read_run(of(b)), {.has_gradients = has_gradients}),
                         a, b);
  }

 private:
  static constexpr const char* kVariable = "LOCKSTEP_RECORD";
  std::string of(const std::string& name) const { return (std::filesystem::path(directory_) / name).string(); }
  std::string directory_;  // empty: nothing is recorded
};

// Trains with every strategy, those with ranks first: processes are best started before this process has threads.
// Returns the exit code of the first failure, or 0 and the results in the order of `names`.
int train_all(const Options& options, Train train, const std::vector<std::string>& names,
              std::vector<Result>& results) {
  std::size_t number = 0;
  const Records records;
  for (const bool in_ranks : {true, false}) {
    if (!in_ranks) install_stop_handler();
    for (const std::string& name : names) {
      if (has_ranks(name) != in_ranks) continue;
      // A run prints nothing here, and may take minutes.
      if (!options.quiet) fmt::print(stderr, "{} of {}: {} ...\n", ++number, names.size(), name);
      const Options here = in_mode(options, name);
      std::filesystem::remove(result_file(here));
      records.begin(name);
      if (const int code = in_ranks ? start_ranks(here) : train(here); code != 0) return code;
    }
  }
  for (const std::string& name : names) results.push_back(read_result(result_file(in_mode(options, name))));
  if (!options.quiet) fmt::print(stderr, "\n");
  return 0;
}

// The number of sequence blocks of this strategy.
int blocks_of(const Options& options, const std::string& name) {
  return has_mesh(name) ? ranks_along(mesh_of(in_mode(options, name), static_cast<int>(options.nproc)), "cp") : 1;
}

// The number of slices of the matrices of this strategy.
int slices_of(const Options& options, const std::string& name) {
  return tensor_slices(in_mode(options, name), static_cast<int>(options.nproc));
}

// Whether the strategy adds in the order of whole micro-batches and matrices.
bool is_in_order(const Options& options, const std::string& name) {
  return name != "single" && blocks_of(options, name) == 1 && slices_of(options, name) == 1;
}

// Whether all strategies that add in the order of micro-batches end with the same parameters. Prints an error if not.
bool have_same_bits(const Options& options, const std::vector<Result>& results, const std::string& names) {
  std::vector<Result> in_order;
  std::ranges::copy_if(results, std::back_inserter(in_order),
                       [&](const Result& r) { return is_in_order(options, r.mode); });
  if (in_order.empty()) return true;
  const auto other = std::ranges::find_if(in_order, [&](const Result& r) { return r.hash != in_order[0].hash; });
  if (other == in_order.end()) return true;
  fmt::print(stderr, "{}: {} should end with bitwise identical parameters, and do not.\n", options.program, names);
  const bool is_outside = options.loss == "outside" && (in_order[0].mode == "dp" || other->mode == "dp");
  fmt::print(stderr, "{}", Records().difference(in_order[0].mode, other->mode, !is_outside));
  return false;
}

// "accumulate, dp and ddp": the strategies that add in order.
std::string names_in_order(const Options& options, const std::vector<std::string>& names) {
  std::vector<std::string> in_order = names;
  std::erase_if(in_order, [&](const std::string& name) { return !is_in_order(options, name); });
  if (in_order.size() < 2) return fmt::format("{}", fmt::join(in_order, ""));
  const std::string last = in_order.back();
  in_order.pop_back();
  return fmt::format("{} and {}", fmt::join(in_order, ", "), last);
}

void print_least_accuracy(const std::vector<Result>& results) {
  const auto least = std::ranges::min_element(results, {}, [](const Result& r) { return r.test.accuracy; });
  fmt::print("test accuracy {:.3f}\n", least->test.accuracy);
}

// The table of --strategies.
void print_costs(const std::vector<Result>& results) {
  fmt::print(
      "                         ---------------- memory of a rank, bytes ---------------   -- moved per step, bytes "
      "--\n"
      "strategy       steps/s  parameters   gradients   optimizer  unit bufs       total   all links   to, from host"
      "  parameter hash\n");
  for (const Result& r : results) {
    double moved = 0;
    for (const Phase phase :
         {Phase::kInputs, Phase::kParameters, Phase::kOutputs, Phase::kLossGradient, Phase::kGradients, Phase::kBuffers,
          Phase::kKeysValues, Phase::kActivations, Phase::kActivationGradients})
      moved += r.moved.per_step(phase);
    fmt::print("{:<14} {:>7.0f} {:>11} {:>11} {:>11} {:>10} {:>11} {:>11.0f} {:>15.0f}  {}\n", r.mode,
               r.steps_per_second, r.memory.parameters, r.memory.gradients, r.memory.optimizer, r.memory.units,
               r.memory.total(), moved, r.moved.per_step(Phase::kOffload), r.hash);
  }
  fmt::print(
      "\nMemory is that of ShardedDataParallel::plan and its closed forms; \"optimizer\" has two buffers per "
      "parameter (Adam).\n");
}

// Says why a later stage has no less memory, if that is so: it surprises who knows what ZeRO is for.
void print_missing_savings(const std::vector<Result>& results) {
  const Result* before = nullptr;
  for (const Result& r : results) {
    if (r.mode != "ddp" && !sharded_of(r.mode)) continue;
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

// Sequence blocks and tensor slices change the order of sums, and so the last digits of the loss.
void print_other_orders(const Options& options, const std::vector<Result>& results) {
  for (const Result& r : results) {
    const int blocks = blocks_of(options, r.mode), slices = slices_of(options, r.mode);
    std::vector<std::string> reasons;
    if (blocks > 1) reasons.push_back(fmt::format("{} sequence blocks ({})", blocks, options.attention));
    if (slices > 1) reasons.push_back(fmt::format("{} tensor slices", slices));
    if (reasons.empty()) continue;
    fmt::print("{} has {}, and so another order of sums: test loss {:.9g}, {} {:.9g}.\n", r.mode,
               fmt::join(reasons, " and "), r.test.loss, results[0].mode, results[0].test.loss);
  }
}

// Compares the strategies that --strategies lists.
int compare_costs(const Options& options, Train train) {
  const std::vector<std::string> names = compared(options);
  if (!options.quiet)
    fmt::print("{}: the same model, data and seed; {} micro-batches per step, {} ranks with one thread each\n\n",
               options.program, options.micro_batches, options.nproc);
  std::fflush(stdout);
  std::vector<Result> results;
  if (const int code = train_all(options, train, names, results); code != 0) return code;
  write_traces_of_all(options);
  print_costs(results);
  print_missing_savings(results);
  const std::string in_order = names_in_order(options, names);
  if (!have_same_bits(options, results, in_order)) return 1;
  print_other_orders(options, results);
  if (in_order.find(" and ") != std::string::npos) fmt::print("{} end with bitwise identical parameters.\n", in_order);
  fmt::print("\n");
  print_written(options);
  fmt::print("files       {}/{{{}}}/: model.safetensors, metrics.jsonl, result.json\n\n", options.out,
             fmt::join(names, ","));
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
  if (const int code = train_all(options, train, compared(options), results); code != 0) return code;
  write_traces_of_all(options);

  print_table(results);
  print_meaning(options, results);
  const Result &single = results[0], &accumulate = results[1];
  fmt::print("Before the first step ddp moved {} more bytes, to compare the models and to send rank 0's parameters.\n",
             sum(results[3].moved.at_start));
  const std::string names = names_in_order(options, compared(options));
  if (!have_same_bits(options, results, names)) return 1;
  fmt::print("{} end with bitwise identical parameters. {}\n", names,
             single.hash == accumulate.hash ? "So does single, this time."
                                            : "single differs: it adds the examples' gradients in another order.");
  fmt::print("\n");
  print_written(options);
  fmt::print(
      "files       {}/{{single,accumulate,dp,ddp}}/: model.safetensors, metrics.jsonl, result.json\n"
      "try next    the same with --strategy ddp (epoch by epoch), --micro-batches 4 --nproc 4, --loss replica\n"
      "            char_gpt --strategy compare --strategies ddp,zero1,zero2,zero3 --micro-batches 4 --nproc 4 "
      "(memory)\n\n",
      options.out);
  print_least_accuracy(results);
  return 0;
}

}  // namespace samples
