/// \file
/// Samplers: the order in which a loader visits the examples of a data set.
///
/// The order of an epoch depends only on the sampler's arguments and the epoch's number, so it can be reproduced after
/// a restart. Each `begin` of a loader advances the epoch; `set_epoch` sets the next one. A loader shares its sampler
/// by pointer, so `set_epoch` on the sampler affects the loader.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "lockstep/base/error.h"

namespace lockstep::data {

/// A permutation of 0..n-1, equal to torch.randperm(n, generator=torch.Generator().manual_seed(seed)).
std::vector<std::int64_t> permutation(std::int64_t n, std::int64_t seed);

namespace detail {
// The given seed, or else that of manual_seed (0 before).
std::int64_t seed_or_manual(std::optional<std::int64_t> seed);
}  // namespace detail

/// Counts epochs. Base of Sampler and BatchSampler.
class EpochCounter {
 public:
  /// The epoch of the next iteration. Store it in a checkpoint, and restore it with set_epoch.
  std::int64_t epoch() const { return epoch_; }
  /// Sets the epoch of the next iteration. Throws InvalidArgument below 0.
  void set_epoch(std::int64_t epoch);

 protected:
  ~EpochCounter() = default;
  std::int64_t epoch_ = 0;  ///< number of the next epoch
};

/// An order of single examples. To write a sampler, derive from this class and implement size and indices.
class Sampler : public EpochCounter {
 public:
  virtual ~Sampler() = default;
  /// The number of indices in an epoch.
  virtual std::int64_t size() const = 0;
  /// The indices of one epoch, in order.
  virtual std::vector<std::int64_t> indices(std::int64_t epoch) const = 0;
  /// Returns the indices of epoch(), then increments the epoch.
  std::vector<std::int64_t> next_epoch();
};

/// 0, 1, ..., n-1.
class SequentialSampler : public Sampler {
 public:
  explicit SequentialSampler(std::int64_t n);
  std::int64_t size() const override { return n_; }
  std::vector<std::int64_t> indices(std::int64_t epoch) const override;

 private:
  std::int64_t n_;
};

/// Options of RandomSampler.
struct RandomSamplerOptions {
  /// Determines the order, together with the epoch. Without it: the seed of manual_seed, when the sampler is made.
  std::optional<std::int64_t> seed = std::nullopt;
};

/// permutation(n, seed + epoch).
class RandomSampler : public Sampler {
 public:
  explicit RandomSampler(std::int64_t n, const RandomSamplerOptions& options = {});
  std::int64_t size() const override { return n_; }
  std::vector<std::int64_t> indices(std::int64_t epoch) const override;

 private:
  std::int64_t n_, seed_;
};

/// Options of WeightedRandomSampler.
struct WeightedRandomSamplerOptions {
  bool replacement = true;  ///< whether an index may occur more than once in an epoch
  /// Determines the order, together with the epoch. Without it: the seed of manual_seed, when the sampler is made.
  std::optional<std::int64_t> seed = std::nullopt;
};

/// Draws `num_samples` indices in [0, weights.size()), each with a probability proportional to its weight. With
/// replacement they equal torch.multinomial(weights, num_samples, True, generator=torch.Generator().manual_seed(seed +
/// epoch)).
class WeightedRandomSampler : public Sampler {
 public:
  /// Throws InvalidArgument for a weight that is negative or not finite, for a sum of 0, and without replacement for more
  /// samples than positive weights.
  WeightedRandomSampler(const std::vector<double>& weights, std::int64_t num_samples,
                        const WeightedRandomSamplerOptions& options = {});
  std::int64_t size() const override { return count_; }
  std::vector<std::int64_t> indices(std::int64_t epoch) const override;

 private:
  std::vector<double> weights_;
  std::int64_t count_, seed_;
  bool replacement_;
};

/// Options of DistributedSampler.
struct DistributedSamplerOptions {
  bool shuffle = true;     ///< permutation(n, seed + epoch) instead of 0..n-1
  std::int64_t seed = 0;   ///< the same on all ranks
  bool drop_last = false;  ///< drop samples that cannot be distributed evenly, instead of repeating the first ones
  bool exact = false;      ///< visit every sample exactly once: ranks may differ by one sample (evaluation)
};

/// The samples of one rank: indices rank, rank + replicas, ... of an order that is the same on all ranks. The algorithm
/// is PyTorch's and gives the same indices; `exact` is an addition.
class DistributedSampler : public Sampler {
 public:
  /// Throws InvalidArgument unless 0 <= rank < replicas, and if both drop_last and exact are set.
  DistributedSampler(std::int64_t n, std::int64_t replicas, std::int64_t rank,
                     const DistributedSamplerOptions& options = {});
  std::int64_t size() const override { return size_; }
  std::vector<std::int64_t> indices(std::int64_t epoch) const override;

 private:
  std::int64_t n_, replicas_, rank_, size_;
  DistributedSamplerOptions options_;
};

/// The batches of one epoch, as lists of indices.
class BatchPlan {
 public:
  BatchPlan() = default;
  /// Splits `indices` into batches of `batch_size`. The rest is a smaller batch, or is dropped.
  BatchPlan(std::vector<std::int64_t> indices, std::int64_t batch_size, bool drop_last);

  void add(std::span<const std::int64_t> batch);                                 ///< appends a batch
  std::int64_t size() const { return static_cast<std::int64_t>(ends_.size()); }  ///< number of batches
  /// The indices of one batch.
  std::span<const std::int64_t> operator[](std::int64_t batch) const {
    const auto b = static_cast<std::size_t>(batch);
    const std::size_t begin = b == 0 ? 0 : ends_[b - 1];
    return {indices_.data() + begin, ends_[b] - begin};
  }
  /// The indices of all batches, in order.
  std::span<const std::int64_t> indices() const { return {indices_.data(), ends_.empty() ? 0 : ends_.back()}; }

 private:
  std::vector<std::int64_t> indices_;
  std::vector<std::size_t> ends_;  // end of each batch in indices_
};

/// An order of whole batches.
class BatchSampler : public EpochCounter {
 public:
  virtual ~BatchSampler() = default;
  /// The number of batches in an epoch.
  virtual std::int64_t size() const = 0;
  virtual BatchPlan batches(std::int64_t epoch) const = 0;  ///< the batches of one epoch
  /// Returns the batches of epoch(), then increments the epoch.
  BatchPlan next_epoch();
};

/// Options of MicroBatchSampler.
struct MicroBatchSamplerOptions {
  std::int64_t micro_batches = 1;  ///< S: number of micro-batches in a step, over all processes
  std::int64_t first = 0;          ///< first micro-batch of the step in this process's batch
  std::int64_t count = -1;         ///< number of micro-batches in the batch; -1: all from `first` on
  std::int64_t batch_size = 1;     ///< samples per micro-batch, not per batch
  bool shuffle = true;             ///< permutation(n, seed + epoch) instead of 0..n-1
  std::int64_t seed = 0;           ///< the same on all ranks
  bool drop_last = false;          ///< as in DistributedSampler; also drops the last batch if it is incomplete
};

/// Batches for training with micro-batches: micro-batch s of step t has the indices [t batch_size, (t+1) batch_size) of
/// DistributedSampler(n, micro_batches, s), whichever process runs it. A batch concatenates micro-batches first,
/// first + 1, ..., all with the same number of samples.
class MicroBatchSampler : public BatchSampler {
 public:
  /// Throws InvalidArgument unless [first, first + count) lies in [0, micro-batches) and batch_size is at least 1.
  MicroBatchSampler(std::int64_t n, const MicroBatchSamplerOptions& options);
  std::int64_t size() const override;
  BatchPlan batches(std::int64_t epoch) const override;  ///< the batches of one epoch

 private:
  MicroBatchSamplerOptions options_;
  std::vector<DistributedSampler> micro_batches_;  // samplers of micro-batches first to first + count - 1
};

}  // namespace lockstep::data
