#include "lockstep/data/dataloader.h"

#include "lockstep/base/check_internal.h"

namespace lockstep::data::detail {
namespace {

constexpr std::int64_t kMaxWorkers = 1024, kMaxPrefetch = 1 << 20;

// PyTorch's rules: a batch sampler determines the whole batch, a sampler the order.
void check_conflicts(const LoaderPlan::Settings& settings) {
  LOCKSTEP_CHECK(!(settings.sampler && settings.shuffle),
                 "DataLoader: .sampler and .shuffle exclude each other: the sampler determines the order");
  if (!settings.batch_sampler) return;
  const char* other = settings.batch_size != 1 ? ".batch_size"
                      : settings.shuffle       ? ".shuffle"
                      : settings.sampler       ? ".sampler"
                      : settings.drop_last     ? ".drop_last"
                                               : nullptr;
  LOCKSTEP_CHECK(
      !other, "DataLoader: .batch_sampler and {} exclude each other: the batch sampler determines the batches", other);
}

}  // namespace

namespace {

void check_ranges(const LoaderPlan::Settings& s) {
  LOCKSTEP_CHECK(s.batch_size >= 1, "DataLoader: .batch_size is {}, it must be at least 1", s.batch_size);
  LOCKSTEP_CHECK(s.num_workers >= 0 && s.num_workers <= kMaxWorkers,
                 "DataLoader: .num_workers is {}, it must be 0 to {}", s.num_workers, kMaxWorkers);
  LOCKSTEP_CHECK(!s.prefetch_factor || s.num_workers > 0,
                 "DataLoader: .prefetch_factor is {}, but no worker prepares batches; give .num_workers, too",
                 *s.prefetch_factor);
  LOCKSTEP_CHECK(s.ahead() >= 1 && s.ahead() <= kMaxPrefetch, "DataLoader: .prefetch{} is {}, it must be 1 to {}",
                 s.prefetch_factor ? "_factor" : "", s.ahead(), kMaxPrefetch);
}

}  // namespace

LoaderPlan::LoaderPlan(Settings settings, bool has_dataset) : dataset_size_(0), settings_(std::move(settings)) {
  LOCKSTEP_CHECK(has_dataset, "DataLoader: the data set is a null pointer");
  const Settings& s = settings_;
  const char* const other = s.shuffle         ? ".shuffle"
                            : s.sampler       ? ".sampler"
                            : s.batch_sampler ? ".batch_sampler"
                                              : nullptr;
  LOCKSTEP_CHECK(!other,
                 "DataLoader: {} with an IterableDataset, which determines the order itself; shuffle in its next()",
                 other);
  check_ranges(s);
}

LoaderPlan::LoaderPlan(std::int64_t dataset_size, Settings settings)
    : dataset_size_(dataset_size), settings_(std::move(settings)) {
  LOCKSTEP_CHECK(dataset_size >= 0, "DataLoader: the data set is a null pointer");
  check_conflicts(settings_);
  const Settings& s = settings_;
  check_ranges(s);
  if (s.sampler || s.batch_sampler) return;
  if (s.shuffle)
    settings_.sampler = std::make_shared<RandomSampler>(dataset_size, RandomSamplerOptions{.seed = s.seed});
  else
    settings_.sampler = std::make_shared<SequentialSampler>(dataset_size);
}

std::int64_t LoaderPlan::size() const {
  LOCKSTEP_CHECK(!is_stream(), "DataLoader: size() with an IterableDataset, whose number of examples is not known");
  if (settings_.batch_sampler) return settings_.batch_sampler->size();
  const std::int64_t rows = settings_.sampler->size(), size = settings_.batch_size;
  return rows / size + (rows % size != 0 && !settings_.drop_last);
}

std::int64_t LoaderPlan::epoch() const {
  if (is_stream()) return stream_epoch_;
  return settings_.batch_sampler ? settings_.batch_sampler->epoch() : settings_.sampler->epoch();
}

void LoaderPlan::set_epoch(std::int64_t epoch) {
  if (is_stream())
    stream_epoch_ = epoch;
  else if (settings_.batch_sampler)
    settings_.batch_sampler->set_epoch(epoch);
  else
    settings_.sampler->set_epoch(epoch);
}

std::shared_ptr<const BatchPlan> LoaderPlan::next_epoch() {
  auto plan = std::make_shared<const BatchPlan>(
      settings_.batch_sampler ? settings_.batch_sampler->next_epoch()
                              : BatchPlan(settings_.sampler->next_epoch(), settings_.batch_size, settings_.drop_last));
  check_rows("DataLoader (sampler)", plan->indices(), dataset_size_);
  return plan;
}

void LoaderPlan::skip(std::int64_t batches) {
  LOCKSTEP_CHECK(batches >= 0, "DataLoader: skip({}): the number of batches must be at least 0", batches);
  skip_ = batches;
}

}  // namespace lockstep::data::detail
