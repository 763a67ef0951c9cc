/// \file
/// Data sets without indices: examples one after another, from a file or a connection.
#pragma once

#include <cstdint>
#include <limits>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "lockstep/base/callback.h"
#include "lockstep/data/dataset.h"
#include "lockstep/data/prefetch.h"

namespace lockstep::data {

/// Examples of type E one after another. A DataLoader calls `shard` at the begin of each epoch, once for each worker, and
/// then `next` of each result on one thread. A rank's loader gets `dataset.shard(rank, ranks)`.
template <class E>
class BasicIterableDataset {
 public:
  using Item = E;  ///< the example type

  virtual ~BasicIterableDataset() = default;
  /// A new iteration, from its first example, over part `index` of `count` parts of this data set's examples. Each example
  /// is in one part; this data set may be a part itself.
  virtual std::unique_ptr<BasicIterableDataset> shard(std::int64_t index, std::int64_t count) const = 0;
  /// The next example; nullopt after the last one, also when called again.
  virtual std::optional<E> next() = 0;
  /// Called before the first `next` of an epoch, for example to shuffle by it.
  virtual void set_epoch(std::int64_t /*epoch*/) {}
};

using IterableDataset = BasicIterableDataset<Example>;  ///< examples of input and target

namespace detail {

// The batches of one epoch. Each worker makes batches of its part, and their batches take turns.
template <class E>
class StreamedBatches {
 public:
  struct Options {
    std::int64_t batch_size, workers, ahead;
    bool drop_last;
  };
  using Collate = std::shared_ptr<const Callback<E(std::vector<E>)>>;
  StreamedBatches(const BasicIterableDataset<E>& dataset, std::int64_t epoch, const Collate& collate,
                  const Options& options) {
    const std::int64_t count = options.workers > 0 ? options.workers : 1;
    for (std::int64_t part = 0; part < count; ++part) {
      std::shared_ptr<BasicIterableDataset<E>> examples = dataset.shard(part, count);
      if (!examples) throw InvalidArgument("IterableDataset: shard returned null");
      examples->set_epoch(epoch);
      parts_.push_back(
          {[examples, collate, options](std::int64_t) { return make(*examples, collate, options); }, nullptr});
    }
    for (Part& part : parts_) {
      if (options.workers > 0)
        part.worker = std::make_unique<Prefetcher>(1, options.ahead, 0, std::numeric_limits<std::int64_t>::max(),
                                                   std::move(part.batch));
    }
  }

  // Null after the last batch. An exception takes the place of its batch.
  std::shared_ptr<E> next() {
    while (!parts_.empty()) {
      if (turn_ >= parts_.size()) turn_ = 0;
      Part& part = parts_[turn_++];
      const std::shared_ptr<void> batch = part.worker ? part.worker->next() : part.batch(0);
      if (batch) return std::static_pointer_cast<E>(batch);
      parts_.erase(parts_.begin() + static_cast<std::ptrdiff_t>(--turn_));
    }
    return nullptr;
  }

 private:
  struct Part {
    Prefetcher::Job batch;
    std::unique_ptr<Prefetcher> worker;
  };

  static std::shared_ptr<void> make(BasicIterableDataset<E>& from, const Collate& collate, const Options& options) {
    std::vector<E> examples;
    while (std::ssize(examples) < options.batch_size) {
      std::optional<E> example = from.next();
      if (!example) break;
      examples.push_back(std::move(*example));
    }
    if (examples.empty() || (options.drop_last && std::ssize(examples) < options.batch_size)) return nullptr;
    if (*collate) return std::make_shared<E>((*collate)(std::move(examples)));
    if constexpr (kStackable<E>)
      return std::make_shared<E>(stack_examples(examples));
    else
      throw_no_collate();
  }

  std::vector<Part> parts_;
  std::size_t turn_ = 0;
};

}  // namespace detail
}  // namespace lockstep::data
