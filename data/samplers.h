// Samplers: in which order a loader visits the examples of a data set.
//
// The order of an epoch is a function of the sampler's arguments and the epoch's number, so it can be had again after a
// restart. The epoch advances by itself whenever a loader begins; `set_epoch` says which one comes next. A loader
// shares its sampler by pointer, so `set_epoch` on yours is what it sees.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "lockstep/tensor/error.h"

namespace lockstep::data {

// 0..n-1 shuffled, exactly torch.randperm(n, generator=torch.Generator().manual_seed(seed)).
std::vector<std::int64_t> permutation(std::int64_t n, std::int64_t seed);

// Counts epochs. The base of both kinds of samplers.
class EpochCounter {
 public:
  // The epoch that the next iteration visits: store it in a checkpoint, and restore it with set_epoch.
  std::int64_t epoch() const { return epoch_; }
  // Throws InvalidArgument below 0.
  void set_epoch(std::int64_t epoch);

 protected:
  ~EpochCounter() = default;
  std::int64_t epoch_ = 0;  // the next one's number
};

// An order of single examples. To write one's own: derive, and implement size and indices.
class Sampler : public EpochCounter {
 public:
  virtual ~Sampler() = default;
  // How many indices an epoch has.
  virtual std::int64_t size() const = 0;
  // The indices of one epoch, in order.
  virtual std::vector<std::int64_t> indices(std::int64_t epoch) const = 0;
  // The indices of epoch(), which then advances.
  std::vector<std::int64_t> next_epoch();
};

// 0, 1, ..., n-1.
class SequentialSampler : public Sampler {
 public:
  explicit SequentialSampler(std::int64_t n);
  std::int64_t size() const override { return n_; }
  std::vector<std::int64_t> indices(std::int64_t epoch) const override;

 private:
  std::int64_t n_;
};

// The seed of a RandomSampler.
struct RandomSamplerOptions {
  std::int64_t seed = 0;  // together with the epoch it decides the order
};

// permutation(n, seed + epoch).
class RandomSampler : public Sampler {
 public:
  explicit RandomSampler(std::int64_t n, const RandomSamplerOptions& options = {});
  std::int64_t size() const override { return n_; }
  std::vector<std::int64_t> indices(std::int64_t epoch) const override;

 private:
  std::int64_t n_, seed_;
};

// How a DistributedSampler deals the rows.
struct DistributedSamplerOptions {
  bool shuffle = true;     // permutation(n, seed + epoch) instead of 0..n-1
  std::int64_t seed = 0;   // the same on all ranks
  bool drop_last = false;  // leave out the rows that do not fill all ranks, instead of repeating the first ones
  bool exact = false;      // every row exactly once: ranks may differ by one row (evaluation)
};

// One rank's share of the rows: of the order that all ranks agree on, every replicas-th index, beginning with the
// rank's own. PyTorch's algorithm, index for index; `exact` is ours.
class DistributedSampler : public Sampler {
 public:
  // Throws InvalidArgument unless 0 <= rank < replicas, or where both drop_last and exact are asked for.
  DistributedSampler(std::int64_t n, std::int64_t replicas, std::int64_t rank,
                     const DistributedSamplerOptions& options = {});
  std::int64_t size() const override { return size_; }
  std::vector<std::int64_t> indices(std::int64_t epoch) const override;

 private:
  std::int64_t n_, replicas_, rank_, size_;
  DistributedSamplerOptions options_;
};

// The batches of one epoch: lists of indices, one after another.
class BatchPlan {
 public:
  BatchPlan() = default;
  // `indices` cut every `batch_size`; what is left over is a smaller batch, or dropped.
  BatchPlan(std::vector<std::int64_t> indices, std::int64_t batch_size, bool drop_last);

  void add(std::span<const std::int64_t> batch);                                 // appends one
  std::int64_t size() const { return static_cast<std::int64_t>(ends_.size()); }  // how many there are
  // The indices of one batch.
  std::span<const std::int64_t> operator[](std::int64_t batch) const {
    const auto b = static_cast<std::size_t>(batch);
    const std::size_t begin = b == 0 ? 0 : ends_[b - 1];
    return {indices_.data() + begin, ends_[b] - begin};
  }
  // All, one batch after another.
  std::span<const std::int64_t> indices() const { return {indices_.data(), ends_.empty() ? 0 : ends_.back()}; }

 private:
  std::vector<std::int64_t> indices_;
  std::vector<std::size_t> ends_;  // of each batch, in indices_
};

// An order of whole batches.
class BatchSampler : public EpochCounter {
 public:
  virtual ~BatchSampler() = default;
  // How many batches an epoch has.
  virtual std::int64_t size() const = 0;
  virtual BatchPlan batches(std::int64_t epoch) const = 0;  // the batches of one epoch
  // The batches of epoch(), which then advances.
  BatchPlan next_epoch();
};

// Which micro-batches of a step a batch holds, and of what size.
struct MicroBatchSamplerOptions {
  std::int64_t micro_batches = 1;  // S: into how many micro-batches a step is cut, over all processes
  std::int64_t first = 0;          // the first micro-batch that a batch holds
  std::int64_t count = -1;         // how many micro-batches a batch holds; -1: all from `first` on
  std::int64_t batch_size = 1;     // rows per micro-batch, not per batch
  bool shuffle = true;             // permutation(n, seed + epoch) instead of 0..n-1
  std::int64_t seed = 0;           // the same on all ranks
  bool drop_last = false;          // as in DistributedSampler, and also the last batch where it is not full
};

// Batches for micro-batch training: step t's micro-batch s has rows [t batch_size, (t+1) batch_size) of what
// DistributedSampler(n, micro-batches, s) deals, whoever runs it. A batch holds micro-batches first, first+1, ... one
// after another, equally many rows of each.
class MicroBatchSampler : public BatchSampler {
 public:
  // Throws InvalidArgument unless [first, first + count) lies in [0, micro-batches) and batch_size is at least 1.
  MicroBatchSampler(std::int64_t n, const MicroBatchSamplerOptions& options);
  std::int64_t size() const override;
  BatchPlan batches(std::int64_t epoch) const override;  // the batches of one epoch

 private:
  MicroBatchSamplerOptions options_;
  std::vector<DistributedSampler> micro_batches_;  // those held, first to first + count - 1
};

}  // namespace lockstep::data
