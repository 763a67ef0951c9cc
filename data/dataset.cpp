#include "lockstep/data/dataset.h"

#include <algorithm>
#include <cmath>
#include <iterator>

#include "lockstep/base/check_internal.h"
#include "lockstep/data/samplers.h"
#include "lockstep/tensor/ops/ops_internal.h"

namespace lockstep::data {
Tensor stack_rows(std::span<const Tensor> rows) {
  LOCKSTEP_CHECK(!rows.empty(), "collate: the batch has no examples");
  std::size_t defined = 0;
  for (const Tensor& row : rows) defined += row.defined();
  if (defined == 0) return {};
  LOCKSTEP_CHECK(defined == rows.size(), "collate: {} of {} tensors are undefined", rows.size() - defined, rows.size());

  const Tensor& first = rows.front();
  Shape shape = first.shape();
  shape.insert(0, static_cast<std::int64_t>(rows.size()));
  const Tensor out = raw::empty(shape, first.options());
  for (std::size_t i = 0; i < rows.size(); ++i) {
    const Tensor& row = rows[i];
    LOCKSTEP_CHECK(row.shape() == first.shape() && row.dtype() == first.dtype() && row.device() == first.device(),
                   "collate: examples differ: example 0 of the batch is {}, example {} is {}", describe(first), i,
                   describe(row));
    raw::copy(row, raw::select(out, 0, static_cast<std::int64_t>(i)));
  }
  return out;
}

void detail::throw_no_collate() {
  throw InvalidArgument(
      "DataLoader: examples of this type cannot be stacked: only tensors and aggregates of one to six "
      "tensors can. Pass .collate, or override get_batch");
}

void detail::throw_no_batch() {
  throw InvalidArgument("DataLoader: the iterator is at the end of the epoch, which has no further batch");
}

void detail::check_rows(const char* who, std::span<const std::int64_t> rows, std::int64_t size) {
  for (const std::int64_t row : rows) {
    LOCKSTEP_CHECK(row >= 0 && row < size, "{}: index {} is outside [0, {})", who, row, size);
  }
}

Tensor detail::row_index(std::span<const std::int64_t> rows, Device device) {
  auto* memory = const_cast<std::int64_t*>(rows.data());  // only read
  const Shape shape{static_cast<std::int64_t>(rows.size())};
  if (device.is_cpu()) return raw::wrap_memory(memory, shape, kInt64, device);
  return raw::to(raw::wrap_memory(memory, shape, kInt64), device);
}

TensorDataset::TensorDataset(Tensor data, Tensor target) : data_(std::move(data)), target_(std::move(target)) {
  LOCKSTEP_CHECK(data_.defined() && target_.defined(), "TensorDataset: the {} tensor is undefined",
                 data_.defined() ? "target" : "data");
  LOCKSTEP_CHECK(data_.dim() > 0 && target_.dim() > 0 && data_.size(0) == target_.size(0),
                 "TensorDataset: data and target differ in rows: data is {}, target is {}", describe(data_),
                 describe(target_));
  size_ = data_.size(0);
  data_ = raw::contiguous(data_);  // once here, instead of in every batch
  target_ = raw::contiguous(target_);
}

Example TensorDataset::get(std::int64_t index) const {
  detail::check_rows("TensorDataset", {&index, 1}, size_);
  return {raw::select(data_, 0, index), raw::select(target_, 0, index)};
}

Example TensorDataset::get_batch(std::span<const std::int64_t> rows) const {
  detail::check_rows("TensorDataset", rows, size_);
  const Device device = data_.device();
  const Tensor index = detail::row_index(rows, device);
  const bool shared = target_.device() == device;
  return {raw::index_select(data_, 0, index),
          raw::index_select(target_, 0, shared ? index : detail::row_index(rows, target_.device()))};
}

std::vector<std::int64_t> SplitLengths::counts(std::int64_t size) const {
  const auto fractions = std::ranges::count_if(lengths_, &Length::is_fraction);
  LOCKSTEP_CHECK(fractions == 0 || fractions == std::ssize(lengths_),
                 "random_split: {} of {} lengths are fractions; expected all lengths to be integers, or all fractions",
                 fractions, lengths_.size());
  std::vector<std::int64_t> counts;
  double sum = 0;
  std::int64_t left = size;
  for (const Length& length : lengths_) {
    const double count = length.is_fraction ? std::floor(static_cast<double>(size) * length.value) : length.value;
    LOCKSTEP_CHECK(count >= 0 && count <= static_cast<double>(left),
                   "random_split: lengths must be at least 0 and add up to the {} examples, fractions to 1; one is {}",
                   size, length.value);
    counts.push_back(static_cast<std::int64_t>(count));
    left -= counts.back();
    sum += length.value;
  }
  if (fractions > 0) {
    LOCKSTEP_CHECK(std::abs(sum - 1) <= 1e-9, "random_split: the fractions add up to {}, expected 1", sum);
    for (std::size_t i = 0; left > 0; i = (i + 1) % counts.size(), --left) ++counts[i];
  }
  LOCKSTEP_CHECK(left == 0, "random_split: lengths add up to {}, the data set has {} examples", size - left, size);
  return counts;
}

std::vector<std::vector<std::int64_t>> detail::split_indices(std::int64_t size, const SplitLengths& lengths,
                                                             std::optional<std::int64_t> seed) {
  const std::vector<std::int64_t> counts = lengths.counts(size);
  const std::vector<std::int64_t> order = permutation(size, seed_or_manual(seed));
  std::vector<std::vector<std::int64_t>> parts;
  auto next = order.begin();
  for (const std::int64_t length : counts) {
    parts.emplace_back(next, next + length);
    next += length;
  }
  return parts;
}

}  // namespace lockstep::data
