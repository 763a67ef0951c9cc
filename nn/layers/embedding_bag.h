/// \file
/// EmbeddingBag: sums, means and maxima of rows of a table. Names, defaults and initialisation are PyTorch's.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "lockstep/nn/module.h"

namespace lockstep::nn {

/// How EmbeddingBag reduces the rows of a bag.
enum class BagMode : std::uint8_t { kSum, kMean, kMax };

struct EmbeddingBagOptions {
  BagMode mode = BagMode::kMean;  ///< kSum, kMean or kMax
  /// The row for padding: it starts as 0, its gradient is 0, and no bag counts it. Negative numbers count from the end.
  std::optional<std::int64_t> padding_idx = std::nullopt;
  bool include_last_offset = false;  ///< the last offset is the number of indices, and begins no bag
};

/// Looks up rows of a table and reduces those of each bag to their sum, mean or maximum: (bags, dim). A bag without rows
/// gives 0. Of equal maxima, the first gets the gradient. weight (n, dim) from N(0, 1).
class EmbeddingBag : public Module {
 public:
  EmbeddingBag(std::int64_t n, std::int64_t dim, const EmbeddingBagOptions& options = {});
  /// index (bags, length) of i64 or i32, each in [0, n): one bag a row.
  Tensor forward(const Tensor& index) const override { return forward(index, {}); }
  /// index (count) with offsets (bags): bag b has the indices from offsets[b] to before offsets[b + 1], the last bag the
  /// rest. For an undefined `offsets`: index (bags, length). The rows are multiplied by per_sample_weights, of index's
  /// shape and weight's dtype, unless undefined. Throws InvalidArgument for an index outside [0, n), for offsets that do
  /// not begin at 0, decrease or exceed the count, and for per_sample_weights in another mode than kSum.
  Tensor forward(const Tensor& index, const Tensor& offsets, const Tensor& per_sample_weights = {}) const;
  /// Index; index and offsets; or index, offsets and per_sample_weights.
  Tensor forward_inputs(const std::vector<Tensor>& inputs) const override;

  Parameter& weight;  ///< (n, dim)

 private:
  Tensor reduce(const Tensor& index, const Tensor& offsets, const Tensor& per_sample_weights) const;

  EmbeddingBagOptions options_;
  std::optional<std::int64_t> padding_idx_;  // in [0, n)
};

}  // namespace lockstep::nn
