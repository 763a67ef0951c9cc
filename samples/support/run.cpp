#include "support/run.h"

#include <fmt/format.h>

#include <cmath>
#include <filesystem>

#include "support/stop.h"

namespace samples {
namespace {

constexpr auto kBetweenEpochs = std::chrono::seconds(1);  // at least, from one checkpoint to the next
constexpr auto kWithinEpoch = std::chrono::seconds(60);

// Numbers of the run that are no part of model and optimizer: two small tensors in the checkpoint.
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

Run::Run(const Options& options, const ls::CheckpointParts& parts, std::int64_t batches_per_epoch)
    : options_(options), parts_(parts), batches_per_epoch_(batches_per_epoch) {
  install_stop_handler();
  make_folder(options.out);
  make_folder(std::filesystem::path(options.save).parent_path());
  if (resume()) restore();
  metrics_.emplace(joined(options.out, "metrics.jsonl"), epoch_ - 1);
  bar_.emplace(options.epochs * batches_per_epoch, (epoch_ - 1) * batches_per_epoch + batch_);
}

// What has to be the same for a run to go on bit for bit.
std::string Run::settings(bool with_epochs) const {
  const std::string text =
      fmt::format("{} {}={} batch={} lr={} seed={}", options_.program, options_.data_flag.substr(2), options_.data,
                  options_.batch, options_.lr, options_.seed);
  return with_epochs ? fmt::format("{} epochs={}", text, options_.epochs) : text;
}

// Whether to go on with the run in the checkpoint file. Says why not, where that may surprise.
bool Run::resume() {
  const bool must = options_.resume == "yes";
  if (options_.resume == "no") return false;
  if (!std::filesystem::exists(options_.save)) {
    if (must) throw ls::IoError(fmt::format("{}: there is no checkpoint to go on with", options_.save));
    return false;
  }
  ls::Metadata metadata;
  try {
    ls::load(options_.save, &metadata);
  } catch (const ls::IoError& error) {
    throw ls::IoError(
        fmt::format("{}\nNothing was changed; --resume no starts afresh and overwrites it", error.what()));
  }
  const bool same = metadata["settings"] == settings(false);
  if (must) {
    if (same) return true;
    throw ls::InvalidArgument(fmt::format("{} is of a run with other settings:\n  {}\n  now: {}", options_.save,
                                          metadata["settings"], settings(false)));
  }
  if (metadata["finished"] == "yes") return false;
  if (same && metadata["settings_with_epochs"] == settings(true)) return true;
  // An unfinished run is somebody's work: it is moved aside, not overwritten.
  const std::string aside = options_.save + ".previous";
  std::filesystem::rename(options_.save, aside);
  fmt::print("The checkpoint is of a run with other settings ({}); it is kept as {}.\n",
             metadata["settings_with_epochs"], aside);
  return false;
}

void Run::restore() {
  ls::StateDict extra;
  ls::CheckpointParts parts = parts_;
  parts.extra = &extra;
  ls::load_checkpoint(options_.save, parts);
  const auto progress = extra.at(kProgress).to_vector<std::int64_t>();
  const auto losses = extra.at(kLosses).to_vector<double>();
  if (progress.size() != 2 || losses.size() != 3 || progress[0] < 1 || progress[1] < 0 ||
      progress[1] > batches_per_epoch_)
    throw ls::IoError(options_.save + ": not a checkpoint of this program");
  epoch_ = progress[0];
  batch_ = progress[1];
  rows_ = losses[0], loss_sum_ = losses[1], square_sum_ = losses[2];
  fmt::print("Going on from {}: epoch {}, batch {}.\n", options_.save, epoch_, batch_);
}

void Run::save(bool finished) {
  ls::StateDict extra = {{kProgress, ls::tensor(std::vector<std::int64_t>{epoch_, batch_})},
                         {kLosses, ls::tensor(std::vector<double>{rows_, loss_sum_, square_sum_})}};
  ls::Metadata metadata = {
      {"settings", settings(false)}, {"settings_with_epochs", settings(true)}, {"finished", finished ? "yes" : "no"}};
  ls::CheckpointParts parts = parts_;
  parts.extra = &extra;
  parts.metadata = &metadata;
  ls::save_checkpoint(options_.save, parts);
  last_save_ = Clock::now();
}

// The standard error of the mean: how much of a change in the loss is noise.
double Run::mean_loss_error() const {
  if (batch_ < 2) return 0;
  const double variance = square_sum_ / rows_ - mean_loss() * mean_loss();
  return std::sqrt(std::max(variance, 0.0) / static_cast<double>(batch_ - 1));
}

void Run::step_done(double loss, std::int64_t rows) {
  const auto weight = static_cast<double>(rows);
  ++batch_;
  rows_ += weight;
  loss_sum_ += weight * loss;
  square_sum_ += weight * loss * loss;
  bar_->step(fmt::format("epoch {:>{}}/{}", epoch_, fmt::formatted_size("{}", options_.epochs), options_.epochs),
             mean_loss(), mean_loss_error());
  if (Clock::now() - last_save_ >= kWithinEpoch) save();
}

bool Run::stop_requested() const { return stop_signal() != 0; }

int Run::interrupted() {
  save();
  bar_.reset();
  // The last --resume counts: "no" would throw away what was just saved.
  const char* resume = options_.resume == "no" ? " --resume auto" : "";
  fmt::print("Stopped in epoch {} after {} of {} batches; saved in {}. To go on:\n  {}{}\n", epoch_, batch_,
             batches_per_epoch_, options_.save, options_.command, resume);
  return 128 + stop_signal();  // what a shell reports for a program that the signal ended: 130 for Ctrl-C
}

void Run::epoch_done(const Score& test) {
  const double seconds = std::chrono::duration<double>(Clock::now() - epoch_start_).count();
  std::string line = fmt::format("epoch {:>{}}/{}: loss {:.4f} ± {:.4f}, test loss {:.4f}, test accuracy {:.3f}",
                                 epoch_, fmt::formatted_size("{}", options_.epochs), options_.epochs, mean_loss(),
                                 mean_loss_error(), test.loss, test.accuracy);
  if (seconds >= 1) line += fmt::format(", {:.1f} s", seconds);
  bar_->print(line);
  metrics_->write({.epoch = epoch_,
                   .step = epoch_ * batches_per_epoch_,
                   .lr = parts_.optimizer->lr(),
                   .train_loss = mean_loss(),
                   .test_loss = test.loss,
                   .test_accuracy = test.accuracy,
                   .seconds = seconds});
  ++epoch_;
  batch_ = 0;
  rows_ = loss_sum_ = square_sum_ = 0;
  epoch_start_ = Clock::now();
  if (Clock::now() - last_save_ >= kBetweenEpochs) save();
}

int Run::finish(const Score& train, const Score& test, const std::string& try_next) {
  save(/*finished=*/true);
  const std::string model = joined(options_.out, "model.safetensors");
  ls::save(parts_.model->state_dict(), model);
  bar_.reset();
  fmt::print("\nmodel       {}\ncheckpoint  {}\nmetrics     {}\ntry next    {}\n\n", model, options_.save,
             metrics_->path(), try_next);
  fmt::print("train loss {:.3f}\ntrain accuracy {:.3f}\ntest loss {:.3f}\ntest accuracy {:.3f}\n", train.loss,
             train.accuracy, test.loss, test.accuracy);
  return 0;
}

}  // namespace samples
