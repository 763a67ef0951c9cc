#include "lockstep/nn/layers/embedding_bag.h"

#include <algorithm>
#include <limits>

#include "lockstep/autograd/ops/creation.h"
#include "lockstep/autograd/ops/functions.h"
#include "lockstep/base/check_internal.h"
#include "lockstep/nn/layers/layer_parts_internal.h"
#include "lockstep/nn/module_runner_internal.h"

namespace lockstep::nn {
namespace {

// The positions of the indices of each bag.
using Bags = std::vector<std::vector<std::int64_t>>;

Bags bags_of(const Tensor& index, const Tensor& offsets, bool include_last) {
  LOCKSTEP_CHECK(index.dim() == (offsets.defined() ? 1 : 2),
                 "EmbeddingBag: the index is {}, expected (bags, length), or (count) together with offsets",
                 describe(index));
  const std::int64_t count = index.numel();
  std::vector<std::int64_t> begins;
  if (offsets.defined()) {
    LOCKSTEP_CHECK(offsets.dim() == 1 && (offsets.dtype() == kInt64 || offsets.dtype() == kInt32),
                   "EmbeddingBag: the offsets are {}, expected (bags) of i64 or i32", describe(offsets));
    begins = offsets.to_vector<std::int64_t>();
    LOCKSTEP_CHECK((!begins.empty() || !include_last) && (begins.empty() || begins.front() == 0) &&
                       std::ranges::is_sorted(begins) && (begins.empty() || begins.back() <= count),
                   "EmbeddingBag: the offsets have to begin at 0, not to decrease, and end within the {} indices; they "
                   "are {}, the last {}",
                   count, describe(offsets), begins.empty() ? 0 : begins.back());
  } else {
    for (std::int64_t i = 0; i < index.size(0); ++i) begins.push_back(i * index.size(1));
  }
  if (!include_last || !offsets.defined()) begins.push_back(count);
  Bags bags(begins.size() - 1);
  for (std::size_t b = 0; b < bags.size(); ++b) {
    for (std::int64_t i = begins[b]; i < begins[b + 1]; ++i) bags[b].push_back(i);
  }
  return bags;
}

void remove_padding(Bags& bags, const Tensor& index, std::int64_t padding) {
  const std::vector<std::int64_t> rows = index.to_vector<std::int64_t>();
  for (std::vector<std::int64_t>& bag : bags)
    std::erase_if(bag, [&](std::int64_t i) { return rows[static_cast<std::size_t>(i)] == padding; });
}

// Sums of each bag's rows, added in order.
Tensor sums(const Tensor& rows, const Bags& bags) {
  std::vector<std::int64_t> positions, owners;
  for (std::size_t b = 0; b < bags.size(); ++b) {
    positions.insert(positions.end(), bags[b].begin(), bags[b].end());
    owners.insert(owners.end(), bags[b].size(), static_cast<std::int64_t>(b));
  }
  const Tensor zero = zeros({static_cast<std::int64_t>(bags.size()), rows.size(1)}, rows.options());
  return index_add(zero, 0, tensor(owners).to(rows.device()),
                   index_select(rows, 0, tensor(positions).to(rows.device())));
}

// (bags, 1): the numbers of rows.
Tensor sizes_of(const Bags& bags, const Tensor& rows) {
  std::vector<double> sizes;
  for (const std::vector<std::int64_t>& bag : bags) sizes.push_back(static_cast<double>(bag.size()));
  return tensor(sizes, {.dtype = rows.dtype()}).to(rows.device()).unsqueeze(1);
}

// All bags get the length of the longest one: the rest are positions of a row of -infinity.
Tensor maxima(const Tensor& rows, const Bags& bags) {
  std::size_t longest = 1;
  for (const std::vector<std::int64_t>& bag : bags) longest = std::max(longest, bag.size());
  std::vector<std::int64_t> positions;
  for (const std::vector<std::int64_t>& bag : bags) {
    positions.insert(positions.end(), bag.begin(), bag.end());
    positions.insert(positions.end(), longest - bag.size(), rows.size(0));
  }
  const Tensor lowest = full({1, rows.size(1)}, -std::numeric_limits<double>::infinity(), rows.options());
  const Tensor all = index_select(cat({rows, lowest}), 0, tensor(positions).to(rows.device()));
  const Shape shape{static_cast<std::int64_t>(bags.size()), static_cast<std::int64_t>(longest), rows.size(1)};
  return where(sizes_of(bags, rows) == 0, 0.0, max(all.reshape(shape), 1).first);
}

}  // namespace

EmbeddingBag::EmbeddingBag(std::int64_t n, std::int64_t dim, const EmbeddingBagOptions& options)
    : weight(add_parameter("weight", embedding_weight(n, dim, padding_row("EmbeddingBag", n, options.padding_idx)))),
      options_(options), padding_idx_(padding_row("EmbeddingBag", n, options.padding_idx)) {}

Tensor EmbeddingBag::forward(const Tensor& index, const Tensor& offsets, const Tensor& per_sample_weights) const {
  return with_runner(*this, [&] { return reduce(index, offsets, per_sample_weights); });
}

Tensor EmbeddingBag::reduce(const Tensor& index, const Tensor& offsets, const Tensor& per_sample_weights) const {
  Bags bags = bags_of(index, offsets, options_.include_last_offset);
  Tensor rows = embedding_rows("EmbeddingBag", weight, index, padding_idx_);
  if (padding_idx_) remove_padding(bags, index, *padding_idx_);
  if (per_sample_weights.defined()) {
    LOCKSTEP_CHECK(options_.mode == BagMode::kSum && per_sample_weights.shape() == index.shape() &&
                       per_sample_weights.dtype() == rows.dtype(),
                   "EmbeddingBag: per_sample_weights are {}; expected BagMode::kSum, the index's shape {} and dtype {}",
                   describe(per_sample_weights), index.shape().to_string(), lockstep::name(rows.dtype()));
    rows = rows * per_sample_weights.reshape({-1, 1});
  }
  if (options_.mode == BagMode::kMax) return maxima(rows, bags);
  const Tensor sum = sums(rows, bags);
  return options_.mode == BagMode::kSum ? sum : sum / clamp_min(sizes_of(bags, rows), 1);
}

Tensor EmbeddingBag::forward_inputs(const std::vector<Tensor>& inputs) const {
  LOCKSTEP_CHECK(!inputs.empty() && inputs.size() <= 3,
                 "EmbeddingBag: called with {} inputs, expected index, offsets and per_sample_weights", inputs.size());
  const auto input = [&](std::size_t i) { return i < inputs.size() ? inputs[i] : Tensor(); };
  return reduce(inputs[0], input(1), input(2));
}

}  // namespace lockstep::nn
