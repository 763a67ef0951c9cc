/// \file
/// DataLoader: batches of a data set, in the order of a sampler, optionally prepared in advance by worker threads.
///
///     DataLoader loader(dataset, {.batch_size = 32, .shuffle = true, .num_workers = 2});
///     for (int epoch = 0; epoch < 10; ++epoch) {
///       for (const auto& [inputs, targets] : loader) { ... }
///     }
#pragma once

#include <cstddef>
#include <cstdint>
#include <iterator>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "lockstep/base/callback.h"
#include "lockstep/data/dataset.h"
#include "lockstep/data/iterable.h"
#include "lockstep/data/prefetch.h"
#include "lockstep/data/samplers.h"

namespace lockstep::data {

/// Options of a loader; DataLoaderOptions for data sets of Example.
template <class E>
struct BasicDataLoaderOptions {
  std::int64_t batch_size = 1;                            ///< samples per batch
  bool shuffle = false;                                   ///< RandomSampler(dataset->size(), {.seed})
  std::shared_ptr<Sampler> sampler = nullptr;             ///< instead of shuffle
  std::shared_ptr<BatchSampler> batch_sampler = nullptr;  ///< instead of batch_size, shuffle, sampler and drop_last
  std::int64_t num_workers = 0;                           ///< worker threads; 0: the iterating thread makes the batches
  bool drop_last = false;                                 ///< drop the last batch if it is incomplete
  std::int64_t prefetch = 2;                              ///< batches that each worker prepares in advance
  std::optional<std::int64_t> prefetch_factor = {};       ///< the same by PyTorch's name; needs num_workers
  std::optional<std::int64_t> seed = {};                  ///< seed of shuffle; by default that of manual_seed
  /// Makes a batch of examples; workers call it concurrently. By default the data set's get_batch makes the batch: it
  /// stacks tensors along a new first dimension.
  Callback<E(std::vector<E>)> collate = {};
};

using DataLoaderOptions = BasicDataLoaderOptions<Example>;  ///< for data sets of two tensors

namespace detail {

// The part of a loader that does not depend on the example type: checks the options, owns the sampler, plans epochs.
class LoaderPlan {
 public:
  struct Settings {
    std::int64_t batch_size;
    bool shuffle;
    std::shared_ptr<Sampler> sampler;
    std::shared_ptr<BatchSampler> batch_sampler;
    std::int64_t num_workers;
    bool drop_last;
    std::int64_t prefetch;
    std::optional<std::int64_t> prefetch_factor;
    std::optional<std::int64_t> seed;
    // The batches that each worker prepares in advance.
    std::int64_t ahead() const { return prefetch_factor.value_or(prefetch); }
  };
  LoaderPlan(std::int64_t dataset_size, Settings settings);  // size -1: the data set is null
  explicit LoaderPlan(Settings settings, bool has_dataset);  // of an IterableDataset

  bool is_stream() const { return !settings_.sampler && !settings_.batch_sampler; }
  std::int64_t next_stream() { return stream_epoch_++; }  // its epoch
  std::int64_t size() const;
  std::int64_t epoch() const;
  void set_epoch(std::int64_t epoch);
  // The batches of the next epoch, with every index checked.
  std::shared_ptr<const BatchPlan> next_epoch();
  const Settings& settings() const { return settings_; }
  void skip(std::int64_t batches);
  std::int64_t take_skip() { return std::exchange(skip_, 0); }  // how many batches the next epoch skips

 private:
  std::int64_t dataset_size_;
  Settings settings_;
  std::int64_t skip_ = 0, stream_epoch_ = 0;
};

}  // namespace detail

/// E is the data set's item type and is deduced from it: Example, or a user-defined aggregate.
///
/// Every `begin` starts a new epoch. The order of batches and of the samples in them depends only on sampler, seed and
/// epoch, never on num_workers. An exception of the data set or of collate is rethrown by `begin` or `++` in place of
/// its batch. Leaving the loop early stops the workers. Copies share nothing. Only one thread may use a loader at a
/// time.
template <class E = Example>
class DataLoader {
 public:
  using Options = BasicDataLoaderOptions<E>;  ///< options for this example type
  class Iterator;

  /// Throws InvalidArgument for options that exclude each other or are out of range.
  explicit DataLoader(std::shared_ptr<const BasicDataset<E>> dataset, Options options = {})
      : plan_(dataset ? dataset->size() : -1, settings(options)),
        source_(std::make_shared<const Source>(Source{std::move(dataset), nullptr, std::move(options.collate)})) {}
  /// Batches of an iterable data set, without sampler, shuffle and size(). Each worker makes batches of its own shard, and
  /// the workers' batches take turns, so the order depends on num_workers, as in PyTorch; a worker's last batch may be
  /// incomplete. skip(k) makes the first k batches and drops them.
  explicit DataLoader(std::shared_ptr<const BasicIterableDataset<E>> dataset, Options options = {})
      : plan_(settings(options), dataset != nullptr),
        source_(std::make_shared<const Source>(Source{nullptr, std::move(dataset), std::move(options.collate)})) {}

  explicit DataLoader(std::nullptr_t, Options options = {})  ///< throws InvalidArgument
      : DataLoader(std::shared_ptr<const BasicDataset<E>>(), std::move(options)) {}

  /// Starts the next epoch.
  Iterator begin() {
    if (plan_.is_stream()) return Iterator(source_, plan_.next_stream(), plan_.settings(), plan_.take_skip());
    const std::int64_t epoch = plan_.epoch();
    return Iterator(source_, plan_.next_epoch(), epoch, plan_.settings(), plan_.take_skip());
  }
  std::default_sentinel_t end() const { return {}; }  ///< end of the epoch

  /// Number of batches in an epoch.
  std::int64_t size() const { return plan_.size(); }
  const BasicDataset<E>& dataset() const { return *source_->dataset; }  ///< the data set, unless that is iterable

  /// The number of the next epoch. To resume in the middle of an epoch: set_epoch(e) sets the sampler's next epoch, and
  /// skip(k) skips the first k batches of that epoch, without making them. Epochs count from 0.
  std::int64_t epoch() const { return plan_.epoch(); }
  void set_epoch(std::int64_t epoch) { plan_.set_epoch(epoch); }  ///< see epoch()
  void skip(std::int64_t batches) { plan_.skip(batches); }        ///< see epoch()

 private:
  static detail::LoaderPlan::Settings settings(const Options& options) {
    return {.batch_size = options.batch_size,
            .shuffle = options.shuffle,
            .sampler = options.sampler,
            .batch_sampler = options.batch_sampler,
            .num_workers = options.num_workers,
            .drop_last = options.drop_last,
            .prefetch = options.prefetch,
            .prefetch_factor = options.prefetch_factor,
            .seed = options.seed};
  }
  struct Source {
    std::shared_ptr<const BasicDataset<E>> dataset;
    std::shared_ptr<const BasicIterableDataset<E>> stream;  // instead
    Callback<E(std::vector<E>)> collate;

    E batch(std::span<const std::int64_t> rows, std::int64_t epoch) const {
      const detail::SampleGuard of_epoch({.epoch = epoch});
      return collate ? collate(dataset->get_each(rows)) : dataset->get_batch(rows);
    }
  };

  detail::LoaderPlan plan_;
  std::shared_ptr<const Source> source_;
};

/// Deduces the example type from the data set.
template <class D>
DataLoader(std::shared_ptr<D>) -> DataLoader<typename D::Item>;
template <class D>
DataLoader(std::shared_ptr<D>, BasicDataLoaderOptions<typename D::Item>) -> DataLoader<typename D::Item>;

/// A single-pass input iterator. It is movable and may outlive the loader.
template <class E>
class DataLoader<E>::Iterator {
 public:
  using value_type = E;
  using difference_type = std::ptrdiff_t;
  using iterator_concept = std::input_iterator_tag;

  /// The batch. Throws InvalidArgument at the end of the epoch.
  const E& operator*() const {
    if (!batch_) detail::throw_no_batch();
    return *batch_;
  }
  const E* operator->() const { return &**this; }
  Iterator& operator++() {
    ++number_;
    fetch();
    return *this;
  }
  void operator++(int) { ++*this; }
  friend bool operator==(const Iterator& iterator, std::default_sentinel_t) {
    return iterator.stream_ ? !iterator.batch_ : iterator.number_ >= iterator.plan_->size();
  }

 private:
  friend class DataLoader;
  Iterator(const std::shared_ptr<const Source>& source, std::int64_t epoch,
           const detail::LoaderPlan::Settings& settings, std::int64_t skipped)
      : stream_(new detail::StreamedBatches<E>(*source->stream, epoch, {source, &source->collate},
                                               {.batch_size = settings.batch_size,
                                                .workers = settings.num_workers,
                                                .ahead = settings.ahead(),
                                                .drop_last = settings.drop_last})) {
    while (skipped-- > 0 && stream_->next()) continue;
    fetch();
  }
  Iterator(std::shared_ptr<const Source> source, std::shared_ptr<const BatchPlan> plan, std::int64_t epoch,
           const detail::LoaderPlan::Settings& settings, std::int64_t first)
      : source_(std::move(source)), plan_(std::move(plan)), epoch_(epoch), number_(first) {
    if (settings.num_workers > 0 && first < plan_->size()) {
      const auto make_batch = [source = source_, plan = plan_, epoch](std::int64_t number) {
        return std::make_shared<E>(source->batch((*plan)[number], epoch));
      };
      workers_ =
          std::make_unique<Prefetcher>(static_cast<int>(settings.num_workers), settings.num_workers * settings.ahead(),
                                       first, plan_->size(), make_batch);
    }
    fetch();
  }

  void fetch() {
    batch_.reset();  // first, so that the next batch can reuse the memory
    if (stream_) {
      if (const std::shared_ptr<E> batch = stream_->next()) batch_.emplace(std::move(*batch));
      return;
    }
    if (number_ >= plan_->size()) return;
    if (workers_)
      batch_.emplace(std::move(*static_cast<E*>(workers_->next().get())));
    else
      batch_.emplace(source_->batch((*plan_)[number_], epoch_));
  }

  std::shared_ptr<const Source> source_;
  std::shared_ptr<const BatchPlan> plan_;
  std::int64_t epoch_ = 0, number_ = 0;
  std::optional<E> batch_;
  std::unique_ptr<detail::StreamedBatches<E>> stream_;  // of an iterable data set
  std::unique_ptr<Prefetcher> workers_;
};

}  // namespace lockstep::data
