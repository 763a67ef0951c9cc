// The bookkeeping of one training run: progress, metrics, checkpoints, Ctrl-C, and resuming an interrupted run. The
// training loop itself is in the sample. Every rank has a Run; only rank 0 writes and prints.
#pragma once

#include <lockstep/lockstep.h>

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "support/metrics.h"
#include "support/options.h"
#include "support/progress.h"
#include "support/result.h"
#include "support/step.h"

namespace ls = lockstep;

namespace samples {

class Run {
 public:
  // Prepares the output folder. Depending on `options.resume`, resumes the run in the checkpoint file: restores
  // `parts` and the random streams.
  Run(const Options& options, Step& step, const ls::CheckpointParts& parts, std::int64_t batches_per_epoch);

  // Operations of a training step for each example: then the lines of epochs have their rate.
  void count_operations(double of_example) { operations_ = of_example; }
  // The first epoch to train, counted from 1.
  std::int64_t first_epoch() const { return epoch_; }
  // Batches of the current epoch that are done; above 0 at the start of an epoch only in a resumed run.
  std::int64_t batches_done() const { return batch_; }
  // Call after each optimizer step, with the mean loss of a batch of `rows` examples. Saves a checkpoint if the last
  // one is a minute old.
  void step_done(double loss, std::int64_t rows);
  // Call after step.stop_requested(). Saves, prints how to resume, and returns the exit code for main.
  int interrupted();
  // Prints and writes the epoch's line.
  void epoch_done(const Score& test);
  // Saves the model, prints the output files and what to try next, and returns main's exit code. Throws
  // lockstep::InvalidArgument if the fault of --inject never happened.
  int finish(const Score& train, const Score& test, const std::string& try_next);

 private:
  using Clock = std::chrono::steady_clock;
  bool resume(ls::Metadata& metadata) const;
  void move_aside(ls::Metadata& metadata) const;
  void restore();
  void save(bool finished = false);
  void save_if_older(Clock::duration age);
  std::string settings(bool with_epochs) const;
  double mean_loss() const { return rows_ > 0 ? loss_sum_ / rows_ : 0; }
  double mean_loss_error() const;

  double steps_per_second() const;
  std::string speed_text() const;
  void say_how_to_go_on() const;
  void write_trace(std::uint64_t hash, const Memory& memory);
  void write_results(const Score& train, const Score& test, const Moved& moved, const Memory& memory,
                     const std::vector<std::uint64_t>& hashes, const std::string& try_next);
  void print_ranks(const std::vector<std::uint64_t>& hashes) const;

  const Options& options_;
  Step& step_;
  ls::CheckpointParts parts_;
  std::int64_t batches_per_epoch_;

  double operations_ = 0;  // of an example
  std::int64_t epoch_ = 1;
  std::int64_t batch_ = 0;                           // batches of this epoch that are done
  double rows_ = 0, loss_sum_ = 0, square_sum_ = 0;  // sums over this epoch; losses are weighted by rows
  Clock::time_point epoch_start_ = Clock::now(), last_save_ = Clock::now(), last_step_ = Clock::now();
  std::vector<double> step_seconds_;  // durations of the latest steps
  ls::TraceTime step_begin_;

  std::optional<MetricsFile> metrics_;
  std::optional<ProgressBar> bar_;
};

}  // namespace samples
