#include "support/run.h"

#include <fmt/format.h>

#include <signal.h>

#include <algorithm>
#include <cmath>
#include <filesystem>

#include "support/mesh.h"
#include "support/stop.h"

namespace samples {
namespace {

constexpr auto kBetweenEpochs = std::chrono::seconds(1);  // minimum time between two checkpoints
constexpr auto kWithinEpoch = std::chrono::seconds(60);
constexpr std::int64_t kStepsBetweenQuestions = 16;  // whether to save a sharded model, which all ranks do together
constexpr std::ptrdiff_t kTimedSteps = 1000;

constexpr const char* kModelFile = "model.safetensors";

// State of the run besides model and optimizer: two small tensors in the checkpoint.
constexpr const char* kProgress = "progress";  // i64: epoch, batches done
constexpr const char* kLosses = "losses";      // f64: rows, sum, sum of squares

std::string joined(const std::string& folder, const char* file) {
  return (std::filesystem::path(folder) / file).string();
}

void make_folder(const std::filesystem::path& folder) {
  if (folder.empty()) return;
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  if (error) throw ls::IoError(fmt::format("{}: cannot be created: {}", folder.string(), error.message()));
}

}  // namespace

Run::Run(const Options& options, Step& step, const ls::CheckpointParts& parts, std::int64_t batches_per_epoch)
    : options_(options), step_(step), parts_(parts), batches_per_epoch_(batches_per_epoch) {
  ls::Metadata metadata;
  const bool goes_on = resume(metadata);
  step.wait_for_others();  // all ranks read this file, and rank 0 may rename it
  if (goes_on) restore();
  if (is_traced(options)) ls::start_trace({.kernels = options.trace_kernels});
  step_begin_ = ls::TraceTime::now();
  if (!step.is_main()) return;
  make_folder(options.out);
  make_folder(std::filesystem::path(options.save).parent_path());
  if (!goes_on) move_aside(metadata);
  metrics_.emplace(joined(options.out, "metrics.jsonl"), epoch_ - 1);
  if (options.quiet) return;
  bar_.emplace(options.epochs * batches_per_epoch, (epoch_ - 1) * batches_per_epoch + batch_);
}

// The settings that must be equal to resume a run bit for bit. The strategy is not one of them: strategies with
// the same micro-batches compute the same bits.
std::string Run::settings(bool with_epochs) const {
  std::string text = fmt::format("{} {}={} batch={} lr={} seed={}", options_.program, options_.data_flag.substr(2),
                                 options_.data, options_.batch, options_.lr, options_.seed);
  if (const auto& gpt = options_.gpt)
    text += fmt::format(" layers={} heads={} width={} context={} dropout={}{}", gpt->layers, gpt->heads, gpt->width,
                        gpt->context, gpt->dropout, gpt->bf16 ? " bf16" : "") +
            (gpt->untied ? " untied" : "");
  if (options_.strategy != "single") text += fmt::format(" micro-batches={}", options_.micro_batches);
  if (const int blocks = step_.blocks_of_sequences(); blocks > 1)
    text += fmt::format(" blocks={} attention={}", blocks, options_.attention);
  if (const int slices = step_.slices_of_matrices(); slices > 1) text += fmt::format(" tensor-slices={}", slices);
  if (step_.has_sums_by_module()) text += fmt::format(" sums-by-module={}", data_ranks(options_, step_.ranks()));
  if (is_gpu(options_.device)) text += " device=cuda";
  if (options_.strategy == "dp" && options_.loss == "outside" && !has_same_bits_outside(options_))
    text += " loss=outside";
  if (options_.order != "canonical") text += " order=" + options_.order;
  if (options_.comm_hook != "none") text += " comm-hook=" + options_.comm_hook;
  return with_epochs ? fmt::format("{} epochs={}", text, options_.epochs) : text;
}

// Reads the metadata of the checkpoint file, and returns whether to resume its run.
bool Run::resume(ls::Metadata& metadata) const {
  const bool must = options_.resume == "yes";
  if (options_.resume == "no") return false;
  if (!std::filesystem::exists(options_.save)) {
    if (must) throw ls::IoError(fmt::format("{}: there is no checkpoint to resume from", options_.save));
    return false;
  }
  try {
    ls::load(options_.save, &metadata);
  } catch (const ls::IoError& error) {
    throw ls::IoError(
        fmt::format("{}\nNothing was changed; --resume no starts from the beginning and overwrites it", error.what()));
  }
  const bool same = metadata["settings"] == settings(false);
  if (!must) return metadata["finished"] != "yes" && same && metadata["settings_with_epochs"] == settings(true);
  if (same) return true;
  throw ls::InvalidArgument(fmt::format("{} is from a run with other settings:\n  {}\n  now: {}", options_.save,
                                        metadata["settings"], settings(false)));
}

// Renames the checkpoint of an unfinished run with other settings, to avoid losing that run.
void Run::move_aside(ls::Metadata& metadata) const {
  if (metadata.empty() || metadata["finished"] == "yes") return;
  const std::string aside = options_.save + ".previous";
  std::filesystem::rename(options_.save, aside);
  fmt::print("The checkpoint is of a run with other settings ({}); it is kept as {}.\n",
             metadata["settings_with_epochs"], aside);
}

void Run::restore() {
  ls::StateDict extra;
  ls::CheckpointParts parts = parts_;
  parts.extra = &extra;
  step_.load(options_.save, parts);
  const auto progress = extra.at(kProgress).to_vector<std::int64_t>();
  const auto losses = extra.at(kLosses).to_vector<double>();
  if (progress.size() != 2 || losses.size() != 3 || progress[0] < 1 || progress[1] < 0 ||
      progress[1] > batches_per_epoch_)
    throw ls::IoError(options_.save + ": not a checkpoint of this program");
  epoch_ = progress[0];
  batch_ = progress[1];
  rows_ = losses[0], loss_sum_ = losses[1], square_sum_ = losses[2];
  if (step_.is_main()) fmt::print("Resuming from {}: epoch {}, batch {}.\n", options_.save, epoch_, batch_);
}

void Run::save(bool finished) {
  last_save_ = Clock::now();
  if (!step_.is_main() && !step_.is_sharded()) return;
  ls::StateDict extra = {
      {kProgress, ls::tensor(std::vector<std::int64_t>{epoch_, batch_})},
      {kLosses, ls::tensor(std::vector<double>{rows_, loss_sum_, square_sum_}, {.dtype = ls::kFloat64})}};
  ls::Metadata metadata = {
      {"settings", settings(false)}, {"settings_with_epochs", settings(true)}, {"finished", finished ? "yes" : "no"}};
  ls::CheckpointParts parts = parts_;
  parts.extra = &extra;
  parts.metadata = &metadata;
  step_.save(options_.save, parts);
}

// Saves if the last checkpoint is `age` old. Rank 0 decides for all ranks, which save a sharded model together.
void Run::save_if_older(Clock::duration age) {
  const bool is_old = Clock::now() - last_save_ >= age;
  if (step_.is_sharded() ? step_.agree(is_old) : is_old) save();
}

// The standard error of the mean loss.
double Run::mean_loss_error() const {
  if (batch_ < 2) return 0;
  const double variance = square_sum_ / rows_ - mean_loss() * mean_loss();
  return std::sqrt(std::max(variance, 0.0) / static_cast<double>(batch_ - 1));
}

void Run::step_done(double loss, std::int64_t rows) {
  const auto weight = static_cast<double>(rows);
  ++batch_;
  if (step_begin_) {
    ls::trace_memory(step_.device());
    ls::reset_peak_bytes(step_.device());
  }
  trace_event(ls::TraceKind::kStep, "step", step_begin_, {.id = (epoch_ - 1) * batches_per_epoch_ + batch_});
  rows_ += weight;
  loss_sum_ += weight * loss;
  square_sum_ += weight * loss * loss;
  const auto now = Clock::now();
  step_seconds_.push_back(std::chrono::duration<double>(now - last_step_).count());
  last_step_ = now;
  if (std::ssize(step_seconds_) > 2 * kTimedSteps)
    step_seconds_.erase(step_seconds_.begin(), step_seconds_.end() - kTimedSteps);
  if (bar_)
    bar_->step(fmt::format("epoch {:>{}}/{}", epoch_, fmt::formatted_size("{}", options_.epochs), options_.epochs),
               mean_loss(), mean_loss_error());
  if (!step_.is_sharded() || batch_ % kStepsBetweenQuestions == 0) save_if_older(kWithinEpoch);
  step_begin_ = ls::TraceTime::now();
}

// The median: a run's first steps are slower.
double Run::steps_per_second() const {
  if (step_seconds_.empty()) return 0;
  std::vector<double> sorted = step_seconds_;
  const auto middle = sorted.begin() + static_cast<std::ptrdiff_t>(sorted.size() / 2);
  std::nth_element(sorted.begin(), middle, sorted.end());
  return 1 / *middle;
}

// The rates of all devices together. The model's FLOP utilization (MFU) is a device's share of its peak.
std::string Run::speed_text() const {
  const double examples = steps_per_second() * static_cast<double>(options_.batch);
  const double gflops = examples * operations_ * 1e-9, peak = options_.gpt->peak_gflops;
  std::string text =
      fmt::format(", {:.0f} tokens/s, {:.1f} GFLOP/s", examples * static_cast<double>(options_.gpt->context), gflops);
  if (peak > 0) text += fmt::format(", MFU {:.0f} %", 100 * gflops / (peak * step_.device_count()));
  return text;
}

int Run::interrupted() {
  const int signal = stop_signal() != 0 ? stop_signal() : SIGTERM;  // 0: another rank received the signal
  step_.share_random_state();
  save();
  bar_.reset();
  if (step_.is_main()) say_how_to_go_on();
  // A launcher stops all ranks when the first one exits, so none exits before the checkpoint is written.
  ignore_stop_signals();
  step_.wait_for_others();
  return 128 + signal;  // what a shell reports for a program that the signal ended: 130 for Ctrl-C
}

void Run::say_how_to_go_on() const {
  std::string command = options_.command;
  for (const std::string discarding : {" --resume no", " --resume=no"}) {  // would discard the checkpoint just saved
    for (std::size_t at; (at = command.find(discarding)) != std::string::npos;) command.erase(at, discarding.size());
  }
  fmt::print("Stopped in epoch {} after {} of {} batches; saved in {}. To resume:\n  {}\n", epoch_, batch_,
             batches_per_epoch_, options_.save, command);
  std::fflush(stdout);
}

void Run::epoch_done(const Score& test) {
  const double seconds = std::chrono::duration<double>(Clock::now() - epoch_start_).count();
  std::string line = fmt::format("epoch {:>{}}/{}: step loss {:.4f} ± {:.4f}, test loss {:.4f}, test accuracy {:.3f}",
                                 epoch_, fmt::formatted_size("{}", options_.epochs), options_.epochs, mean_loss(),
                                 mean_loss_error(), test.loss, test.accuracy);
  if (seconds >= 1) line += fmt::format(", {:.1f} s", seconds);
  if (options_.gpt) line += speed_text();
  if (bar_) bar_->print(line);
  if (metrics_)
    metrics_->write({.epoch = epoch_,
                     .step = epoch_ * batches_per_epoch_,
                     .lr = parts_.optimizer->lr(),
                     .step_loss = mean_loss(),
                     .test_loss = test.loss,
                     .test_accuracy = test.accuracy,
                     .seconds = seconds});
  ++epoch_;
  batch_ = 0;
  rows_ = loss_sum_ = square_sum_ = 0;
  if (options_.save_every == 0)
    save_if_older(kBetweenEpochs);
  else if ((epoch_ - 1) % options_.save_every == 0)
    save();
  epoch_start_ = last_step_ = Clock::now();
  step_begin_ = ls::TraceTime::now();
}

// Gathers the traces of all ranks and writes them.
void Run::write_trace(std::uint64_t hash, const Memory& memory) {
  if (!is_traced(options_)) return;
  std::vector<ls::Trace> traces = step_.traces(ls::stop_trace());
  if (!step_.is_main()) return;
  bar_.reset();
  traces[0].notes.emplace_back(report::kHashNote, fmt::format("{:016x}", hash));
  if (const double rate = steps_per_second(); rate > 0)
    traces[0].notes.emplace_back(report::kStepNote, std::to_string(std::llround(1e9 / rate)));
  traces[0].notes.push_back(report::memory_note({memory.parameters, memory.gradients, memory.optimizer, memory.units}));
  traces[0].notes.push_back(report::losses_note(read_losses(metrics_->path())));
  write_traces(options_, traces);
}

// Prints the hashes of the replicas, which another order of additions may have made diverge. The user selected the
// order, so divergence is no error.
void Run::print_ranks(const std::vector<std::uint64_t>& hashes) const {
  const bool equal = std::ranges::all_of(hashes, [&](std::uint64_t hash) { return hash == hashes[0]; });
  for (std::size_t r = 0; r < hashes.size(); ++r) fmt::print("  rank {:<5}{:016x}\n", r, hashes[r]);
  fmt::print("  {}, with --order {}: {}\n", equal ? "the replicas are equal" : "the replicas have diverged",
             options_.order,
             hashes.size() < 3               ? "two numbers have one sum, whichever comes first"
             : options_.order == "own-first" ? "each rank added its own gradient first"
                                             : "all ranks added in one order; in another run it may be another");
}

int Run::finish(const Score& train, const Score& test, const std::string& try_next) {
  const Moved moved = step_.moved();
  const Memory memory = step_.memory();
  const std::vector<std::uint64_t> hashes = step_.hashes();
  write_trace(hashes[0], memory);
  save(/*finished=*/true);
  step_.gathered([&] {
    if (step_.is_main()) ls::save(parts_.model->state_dict(), joined(options_.out, kModelFile));
  });
  if (step_.is_main()) write_results(train, test, moved, memory, hashes, try_next);
  step_.check_injection();
  return 0;
}

void Run::write_results(const Score& train, const Score& test, const Moved& moved, const Memory& memory,
                        const std::vector<std::uint64_t>& hashes, const std::string& try_next) {
  const std::string hash = fmt::format("{:016x}", hashes[0]);
  write_result(joined(options_.out, "result.json"), {.mode = options_.strategy,
                                                     .steps_per_second = steps_per_second(),
                                                     .train = train,
                                                     .test = test,
                                                     .moved = moved,
                                                     .memory = memory,
                                                     .idle = step_.idle_share(),
                                                     .hash = hash});
  bar_.reset();
  if (options_.quiet) return;
  fmt::print("\nmodel       {}\ncheckpoint  {}\nmetrics     {}\n", joined(options_.out, kModelFile), options_.save,
             metrics_->path());
  print_written(options_);
  fmt::print("hash        {}\n", hash);
  if (options_.order != "canonical") print_ranks(hashes);
  fmt::print("try next    {}\n\n", try_next);
  fmt::print("train loss {:.3f}\ntrain accuracy {:.3f}\ntest loss {:.3f}\ntest accuracy {:.3f}\n", train.loss,
             train.accuracy, test.loss, test.accuracy);
}

}  // namespace samples
