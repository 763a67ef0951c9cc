/// \file
/// Data sets: examples, accessed by index.
#pragma once

#include <concepts>
#include <cstdint>
#include <initializer_list>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "lockstep/data/collate.h"
#include "lockstep/data/sample_context.h"
#include "lockstep/tensor/tensor.h"

namespace lockstep::data {

namespace detail {
[[noreturn]] void throw_no_collate();
[[noreturn]] void throw_no_batch();  // at the end of an epoch
void check_rows(const char* who, std::span<const std::int64_t> rows, std::int64_t size);
// An i64 index tensor on the memory of `rows`, copied if `device` is not the CPU.
Tensor row_index(std::span<const std::int64_t> rows, Device device);
}  // namespace detail

/// A data set with examples of type E: `Example` (two tensors) or a user-defined aggregate.
///
/// A DataLoader with workers calls `get` and `get_batch` from several threads at once, so they are const. Random
/// numbers drawn there should depend on the index; otherwise the data depend on the number of workers.
template <class E>
class BasicDataset {
 public:
  using Item = E;  ///< the example type

  virtual ~BasicDataset() = default;
  /// Number of examples. It must not change while a loader reads the data set.
  virtual std::int64_t size() const = 0;
  /// The example at `index`, 0 <= index < size().
  virtual E get(std::int64_t index) const = 0;
  /// The examples with indices `rows`, in that order, as one batch. Override it if a batch can be gathered faster.
  virtual E get_batch(std::span<const std::int64_t> rows) const {
    if constexpr (kStackable<E>)
      return stack_examples(get_each(rows));
    else
      detail::throw_no_collate();
  }
  /// The examples with indices `rows`, in that order.
  std::vector<E> get_each(std::span<const std::int64_t> rows) const {
    std::vector<E> examples;
    examples.reserve(rows.size());
    for (const std::int64_t row : rows) {
      const detail::SampleGuard sample({.epoch = detail::sample_context().epoch, .index = row});
      examples.push_back(get(row));
    }
    return examples;
  }
};

using Dataset = BasicDataset<Example>;  ///< a data set of input and target

/// A data set of two tensors: example i is (data[i], target[i]). Shares the memory of contiguous tensors.
class TensorDataset : public Dataset {
 public:
  /// data (n, ...), target (n, ...). Throws InvalidArgument if the first dimensions differ or are missing.
  TensorDataset(Tensor data, Tensor target);

  std::int64_t size() const override { return size_; }
  Example get(std::int64_t index) const override;
  Example get_batch(std::span<const std::int64_t> rows) const override;

  const Tensor& data() const { return data_; }      ///< (n, ...)
  const Tensor& target() const { return target_; }  ///< (n, ...)

 private:
  Tensor data_, target_;
  std::int64_t size_;
};

/// A subset of another data set: example i is example indices[i] of that data set.
template <class E>
class BasicSubset : public BasicDataset<E> {
 public:
  /// Throws InvalidArgument for an index outside [0, dataset->size()).
  BasicSubset(std::shared_ptr<const BasicDataset<E>> dataset, std::vector<std::int64_t> indices)
      : dataset_(std::move(dataset)), indices_(std::move(indices)) {
    detail::check_rows("Subset", indices_, dataset_->size());
  }

  std::int64_t size() const override { return static_cast<std::int64_t>(indices_.size()); }
  E get(std::int64_t index) const override {
    detail::check_rows("Subset", {&index, 1}, size());
    return dataset_->get(indices_[static_cast<std::size_t>(index)]);
  }
  E get_batch(std::span<const std::int64_t> rows) const override {
    detail::check_rows("Subset", rows, size());
    std::vector<std::int64_t> inner;
    inner.reserve(rows.size());
    for (const std::int64_t row : rows) inner.push_back(indices_[static_cast<std::size_t>(row)]);
    return dataset_->get_batch(inner);
  }

  const std::vector<std::int64_t>& indices() const { return indices_; }  ///< indices in the other data set

 private:
  std::shared_ptr<const BasicDataset<E>> dataset_;
  std::vector<std::int64_t> indices_;
};

using Subset = BasicSubset<Example>;  ///< subset of a Dataset

template <class D>
BasicSubset(std::shared_ptr<D>, std::vector<std::int64_t>) -> BasicSubset<typename D::Item>;

/// Data sets one after another: the examples of the first, then those of the second, ...
template <class E>
class BasicConcatDataset : public BasicDataset<E> {
 public:
  /// Throws InvalidArgument for no data sets, and for a null pointer.
  explicit BasicConcatDataset(std::vector<std::shared_ptr<const BasicDataset<E>>> datasets)
      : datasets_(std::move(datasets)) {
    if (datasets_.empty()) throw InvalidArgument("ConcatDataset: there are no data sets");
    for (const auto& dataset : datasets_) {
      if (!dataset) throw InvalidArgument("ConcatDataset: a data set is null");
      ends_.push_back(size() + dataset->size());
    }
  }

  std::int64_t size() const override { return ends_.empty() ? 0 : ends_.back(); }
  E get(std::int64_t index) const override {
    detail::check_rows("ConcatDataset", {&index, 1}, size());
    std::size_t part = 0;
    while (index >= ends_[part]) ++part;
    return datasets_[part]->get(part == 0 ? index : index - ends_[part - 1]);
  }

 private:
  std::vector<std::shared_ptr<const BasicDataset<E>>> datasets_;
  std::vector<std::int64_t> ends_;  // index after the last example of each
};

using ConcatDataset = BasicConcatDataset<Example>;  ///< several Datasets

/// The sizes of the parts of a split: integers are numbers of examples, `{80, 20}`; floating-point numbers are
/// fractions, `{0.8, 0.2}`.
class SplitLengths {
 public:
  /// One length or fraction.
  struct Length {
    template <std::integral T>
    Length(T count) : value(static_cast<double>(count)), is_fraction(false) {}  // NOLINT: implicit
    template <std::floating_point T>
    Length(T fraction) : value(fraction), is_fraction(true) {}  // NOLINT: implicit

    double value;      ///< the length, or the fraction
    bool is_fraction;  ///< which of the two
  };
  SplitLengths(std::initializer_list<Length> lengths) : lengths_(lengths) {}
  template <class T>
  SplitLengths(const std::vector<T>& lengths) : lengths_(lengths.begin(), lengths.end()) {}  // NOLINT: implicit

  /// The numbers of examples. For fractions: size times fraction, rounded down; the remaining examples go to the first
  /// parts, one each. Throws InvalidArgument unless the lengths add up to `size`, or the fractions to 1.
  std::vector<std::int64_t> counts(std::int64_t size) const;

 private:
  std::vector<Length> lengths_;
};

namespace detail {
// The indices of each part: consecutive sections of a permutation.
std::vector<std::vector<std::int64_t>> split_indices(std::int64_t size, const SplitLengths& lengths,
                                                     std::optional<std::int64_t> seed);
}  // namespace detail

/// Splits a data set at random into parts of the given lengths or fractions, by permutation(size, seed). Without a
/// seed, the seed of manual_seed is used: calls after one manual_seed give the same parts. The result depends only on
/// size, lengths and seed, and equals PyTorch's random_split with a generator of that seed. Throws InvalidArgument
/// unless the lengths add up to the size, or the fractions to 1.
template <class D>
auto random_split(const std::shared_ptr<D>& dataset, const SplitLengths& lengths,
                  std::optional<std::int64_t> seed = std::nullopt) {
  std::vector<std::shared_ptr<BasicSubset<typename D::Item>>> parts;
  for (auto& indices : detail::split_indices(dataset->size(), lengths, seed)) {
    parts.push_back(std::make_shared<BasicSubset<typename D::Item>>(dataset, std::move(indices)));
  }
  return parts;
}

}  // namespace lockstep::data
