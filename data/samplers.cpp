#include "lockstep/data/samplers.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <random>
#include <utility>

#include "lockstep/base/check_internal.h"
#include "lockstep/tensor/random/random.h"

namespace lockstep::data {
namespace {

void check_size(const char* who, std::int64_t n) { LOCKSTEP_CHECK(n >= 0, "{}: the number of examples is {}", who, n); }

// Wraps around on overflow: PyTorch's generator uses only the low bits.
std::int64_t add_seed(std::int64_t seed, std::int64_t epoch) {
  return static_cast<std::int64_t>(static_cast<std::uint64_t>(seed) + static_cast<std::uint64_t>(epoch));
}

std::vector<std::int64_t> in_order(std::int64_t n) {
  std::vector<std::int64_t> indices(static_cast<std::size_t>(n));
  std::iota(indices.begin(), indices.end(), 0);
  return indices;
}

// Samples per rank by PyTorch's formula: rounded up with padding, down with drop_last. `exact` gives low ranks one
// more.
std::int64_t rows_of_rank(std::int64_t n, std::int64_t replicas, std::int64_t rank,
                          const DistributedSamplerOptions& options) {
  const std::int64_t whole = n / replicas, rest = n % replicas;
  if (options.drop_last) return whole;
  if (options.exact) return whole + (rank < rest);
  return whole + (rest > 0);
}

}  // namespace

// torch.randperm on the CPU (aten/src/ATen/native/TensorFactories.cpp, randperm_cpu). The generator is mt19937, seeded
// with the low 32 bits; for large n a draw takes two words.
std::vector<std::int64_t> permutation(std::int64_t n, std::int64_t seed) {
  check_size("permutation", n);
  constexpr std::int64_t kTwoWordsFrom = std::numeric_limits<std::uint32_t>::max() / 20;
  std::vector<std::int64_t> order = in_order(n);
  std::mt19937 words(static_cast<std::uint32_t>(seed));
  for (std::int64_t i = 0; i < n - 1; ++i) {
    std::uint64_t draw = words();
    if (n >= kTwoWordsFrom) draw = draw << 32 | words();
    const auto step = static_cast<std::int64_t>(draw % static_cast<std::uint64_t>(n - i));
    std::swap(order[static_cast<std::size_t>(i)], order[static_cast<std::size_t>(i + step)]);
  }
  return order;
}

std::int64_t detail::seed_or_manual(std::optional<std::int64_t> seed) {
  return seed ? *seed : static_cast<std::int64_t>(random::seed());
}

void EpochCounter::set_epoch(std::int64_t epoch) {
  LOCKSTEP_CHECK(epoch >= 0, "set_epoch: the epoch is {}, it must be at least 0", epoch);
  epoch_ = epoch;
}

std::vector<std::int64_t> Sampler::next_epoch() {
  std::vector<std::int64_t> order = indices(epoch_);
  ++epoch_;
  return order;
}

BatchPlan BatchSampler::next_epoch() {
  BatchPlan plan = batches(epoch_);
  ++epoch_;
  return plan;
}

SequentialSampler::SequentialSampler(std::int64_t n) : n_(n) { check_size("SequentialSampler", n); }

std::vector<std::int64_t> SequentialSampler::indices(std::int64_t /*epoch*/) const { return in_order(n_); }

RandomSampler::RandomSampler(std::int64_t n, const RandomSamplerOptions& options)
    : n_(n), seed_(detail::seed_or_manual(options.seed)) {
  check_size("RandomSampler", n);
}

std::vector<std::int64_t> RandomSampler::indices(std::int64_t epoch) const {
  return permutation(n_, add_seed(seed_, epoch));
}

WeightedRandomSampler::WeightedRandomSampler(const std::vector<double>& weights, std::int64_t num_samples,
                                             const WeightedRandomSamplerOptions& options)
    : weights_(weights), count_(num_samples), seed_(detail::seed_or_manual(options.seed)),
      replacement_(options.replacement) {
  check_size("WeightedRandomSampler", num_samples);
  double sum = 0;
  for (std::size_t i = 0; i < weights.size(); ++i) {
    LOCKSTEP_CHECK(weights[i] >= 0 && std::isfinite(weights[i]),
                   "WeightedRandomSampler: weight {} is {}, expected a finite number of at least 0", i, weights[i]);
    sum += weights[i];
  }
  LOCKSTEP_CHECK(sum > 0, "WeightedRandomSampler: the {} weights have no positive sum", weights.size());
  const auto positive = std::ranges::count_if(weights, [](double weight) { return weight > 0; });
  LOCKSTEP_CHECK(replacement_ || num_samples <= positive,
                 "WeightedRandomSampler: {} samples without replacement from {} positive weights", num_samples,
                 positive);
}

// With replacement as torch.multinomial on the CPU (aten/src/ATen/native/cpu/MultinomialKernel.cpp): a draw of 53 bits, from
// two words of the generator, selects an interval of the normalised cumulative sums. Without replacement the indices are
// those of the first events of independent exponential clocks, whose rates are the weights.
std::vector<std::int64_t> WeightedRandomSampler::indices(std::int64_t epoch) const {
  std::mt19937 words(static_cast<std::uint32_t>(add_seed(seed_, epoch)));
  const auto uniform = [&words] {
    const std::uint64_t high = words();
    return static_cast<double>((high << 32 | words()) & ((std::uint64_t{1} << 53) - 1)) * 0x1p-53;
  };
  std::vector<std::int64_t> drawn(static_cast<std::size_t>(count_));
  if (replacement_) {
    std::vector<double> sums(weights_.size());
    std::partial_sum(weights_.begin(), weights_.end(), sums.begin());
    for (const double total = sums.back(); double& sum : sums) sum /= total;
    for (std::int64_t& index : drawn) index = std::ranges::lower_bound(sums, uniform()) - sums.begin();
    return drawn;
  }
  std::vector<std::pair<double, std::int64_t>> events;
  for (std::size_t i = 0; i < weights_.size(); ++i) {
    const double waiting = -std::log1p(-uniform());
    if (weights_[i] > 0) events.emplace_back(waiting / weights_[i], static_cast<std::int64_t>(i));
  }
  std::ranges::sort(events);
  for (std::size_t i = 0; i < drawn.size(); ++i) drawn[i] = events[i].second;
  return drawn;
}

DistributedSampler::DistributedSampler(std::int64_t n, std::int64_t replicas, std::int64_t rank,
                                       const DistributedSamplerOptions& options)
    : n_(n), replicas_(replicas), rank_(rank), options_(options) {
  check_size("DistributedSampler", n);
  LOCKSTEP_CHECK(replicas >= 1 && rank >= 0 && rank < replicas, "DistributedSampler: rank {} is not one of {} replicas",
                 rank, replicas);
  LOCKSTEP_CHECK(!(options.drop_last && options.exact),
                 "DistributedSampler: .drop_last and .exact exclude each other: exact drops and repeats no sample");
  size_ = rows_of_rank(n, replicas, rank, options);
}

std::vector<std::int64_t> DistributedSampler::indices(std::int64_t epoch) const {
  const std::vector<std::int64_t> all =
      options_.shuffle ? permutation(n_, add_seed(options_.seed, epoch)) : in_order(n_);
  std::vector<std::int64_t> mine;
  mine.reserve(static_cast<std::size_t>(size_));
  for (std::int64_t i = 0; i < size_; ++i) {
    // Padding repeats the list from its start, as often as needed, as in PyTorch.
    mine.push_back(all[static_cast<std::size_t>((rank_ + i * replicas_) % n_)]);
  }
  return mine;
}

BatchPlan::BatchPlan(std::vector<std::int64_t> indices, std::int64_t batch_size, bool drop_last)
    : indices_(std::move(indices)) {
  LOCKSTEP_CHECK(batch_size >= 1, "batch_size is {}, it must be at least 1", batch_size);
  const auto size = static_cast<std::size_t>(batch_size);
  ends_.reserve(indices_.size() / size + 1);
  std::size_t begin = 0;
  for (; indices_.size() - begin >= size; begin += size) ends_.push_back(begin + size);
  if (begin < indices_.size() && !drop_last) ends_.push_back(indices_.size());
}

void BatchPlan::add(std::span<const std::int64_t> batch) {
  indices_.resize(ends_.empty() ? 0 : ends_.back());  // removes a dropped rest
  indices_.insert(indices_.end(), batch.begin(), batch.end());
  ends_.push_back(indices_.size());
}

MicroBatchSampler::MicroBatchSampler(std::int64_t n, const MicroBatchSamplerOptions& options) : options_(options) {
  const std::int64_t micro_batches = options.micro_batches, first = options.first;
  if (options.count == -1) options_.count = micro_batches - first;
  const std::int64_t count = options_.count;
  LOCKSTEP_CHECK(
      micro_batches >= 1 && first >= 0 && count >= 1 && first < micro_batches && count <= micro_batches - first,
      "MicroBatchSampler: .first {} and .count {} are outside the {} micro-batches", first, count, micro_batches);
  LOCKSTEP_CHECK(options.batch_size >= 1, "MicroBatchSampler: .batch_size is {}, it must be at least 1",
                 options.batch_size);
  for (std::int64_t micro_batch = first; micro_batch < first + count; ++micro_batch) {
    micro_batches_.emplace_back(
        n, micro_batches, micro_batch,
        DistributedSamplerOptions{.shuffle = options.shuffle, .seed = options.seed, .drop_last = options.drop_last});
  }
}

std::int64_t MicroBatchSampler::size() const {
  const std::int64_t rows = micro_batches_.front().size(), size = options_.batch_size;
  return rows / size + (rows % size != 0 && !options_.drop_last);
}

BatchPlan MicroBatchSampler::batches(std::int64_t epoch) const {
  std::vector<std::vector<std::int64_t>> rows;
  for (const DistributedSampler& micro_batch : micro_batches_) rows.push_back(micro_batch.indices(epoch));
  BatchPlan plan;
  std::vector<std::int64_t> batch;
  for (std::int64_t step = 0; step < size(); ++step) {
    batch.clear();
    const std::int64_t begin = step * options_.batch_size;
    const std::int64_t end = begin + std::min(options_.batch_size, micro_batches_.front().size() - begin);
    for (const auto& micro_batch : rows)
      batch.insert(batch.end(), micro_batch.begin() + begin, micro_batch.begin() + end);
    plan.add(batch);
  }
  return plan;
}

}  // namespace lockstep::data
