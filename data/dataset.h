// Data sets: a number of examples, each by its index.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "lockstep/data/collate.h"
#include "lockstep/tensor/tensor.h"

namespace lockstep::data {

namespace detail {
[[noreturn]] void throw_no_collate();
void check_rows(const char* who, std::span<const std::int64_t> rows, std::int64_t size);
// An i64 tensor on the memory of `rows` (copied to a device that is not the CPU), to select rows with.
Tensor row_index(std::span<const std::int64_t> rows, Device device);
}  // namespace detail

// A data set whose examples are of type E: `Example` (two tensors) or an aggregate of the user's own.
//
// A DataLoader with workers calls `get` and `get_batch` from several threads at once; they are const for that reason.
// Random numbers drawn there should depend on the index, or the data depend on the number of workers.
template <class E>
class BasicDataset {
 public:
  using Item = E;  // the type of its examples

  virtual ~BasicDataset() = default;
  // Number of examples. It must not change while a loader reads them.
  virtual std::int64_t size() const = 0;
  // The example at `index`, 0 <= index < size().
  virtual E get(std::int64_t index) const = 0;
  // The examples of `rows`, in that order, as one batch. Overridden where a batch can be gathered faster than row by row.
  virtual E get_batch(std::span<const std::int64_t> rows) const {
    if constexpr (kStackable<E>)
      return stack_examples(get_each(rows));
    else
      detail::throw_no_collate();
  }
  // The examples of `rows`, one by one.
  std::vector<E> get_each(std::span<const std::int64_t> rows) const {
    std::vector<E> examples;
    examples.reserve(rows.size());
    for (const std::int64_t row : rows) examples.push_back(get(row));
    return examples;
  }
};

using Dataset = BasicDataset<Example>;  // whose examples are two tensors

// Two tensors side by side: example i is (data[i], target[i]). It shares their memory where they are contiguous.
class TensorDataset : public Dataset {
 public:
  // data (n, ...), target (n, ...). Throws InvalidArgument where they have no rows or not the same number of them.
  TensorDataset(Tensor data, Tensor target);

  std::int64_t size() const override { return size_; }
  Example get(std::int64_t index) const override;
  Example get_batch(std::span<const std::int64_t> rows) const override;

  const Tensor& data() const { return data_; }      // (n, ...)
  const Tensor& target() const { return target_; }  // (n, ...)

 private:
  Tensor data_, target_;
  std::int64_t size_;
};

// Some examples of another data set: example i is the other's indices[i].
template <class E>
class BasicSubset : public BasicDataset<E> {
 public:
  // Throws InvalidArgument for an index that `dataset` does not have.
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

  const std::vector<std::int64_t>& indices() const { return indices_; }  // in the other data set

 private:
  std::shared_ptr<const BasicDataset<E>> dataset_;
  std::vector<std::int64_t> indices_;
};

using Subset = BasicSubset<Example>;  // of a Dataset

template <class D>
BasicSubset(std::shared_ptr<D>, std::vector<std::int64_t>) -> BasicSubset<typename D::Item>;

namespace detail {
// The indices of each part: consecutive pieces of permutation(size, seed).
std::vector<std::vector<std::int64_t>> split_indices(std::int64_t size, const std::vector<std::int64_t>& lengths,
                                                     std::int64_t seed);
}  // namespace detail

// Cuts a data set at random into parts of the given lengths, which must add up to its size (else InvalidArgument).
// A function of size, lengths and seed alone: PyTorch's random_split with a generator of that seed.
template <class D>
auto random_split(const std::shared_ptr<D>& dataset, const std::vector<std::int64_t>& lengths, std::int64_t seed = 0) {
  std::vector<std::shared_ptr<BasicSubset<typename D::Item>>> parts;
  for (auto& indices : detail::split_indices(dataset->size(), lengths, seed)) {
    parts.push_back(std::make_shared<BasicSubset<typename D::Item>>(dataset, std::move(indices)));
  }
  return parts;
}

}  // namespace lockstep::data
