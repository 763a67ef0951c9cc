// Layers that are cut along the vocabulary: runners that compute this rank's slices. Not installed.
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "lockstep/parallel/model_parallel/tensor_region_internal.h"

namespace lockstep::parallel {

// Rows of a table, whose rows are cut. Each index is in one slice; the other slices have -0 there, so that the sum over
// all slices has the bits of the row.
class VocabEmbeddingRunner final : public SharedRunner {
 public:
  VocabEmbeddingRunner(std::shared_ptr<const TensorSlices> slices, std::vector<nn::Parameter> weights,
                       std::int64_t rows, std::optional<std::int64_t> padding_idx);
  Tensor run(const std::vector<Tensor>& inputs, Forward forward) const override;

 private:
  std::shared_ptr<const TensorSlices> slices_;
  std::vector<nn::Parameter> weights_;
  std::int64_t rows_;
  std::optional<std::int64_t> padding_idx_;
};

// Logits: a linear layer whose outputs, the vocabulary, are cut.
class VocabLinearRunner final : public SharedRunner {
 public:
  VocabLinearRunner(std::shared_ptr<const TensorSlices> slices, std::vector<nn::Parameter> weights,
                    std::vector<nn::Parameter> biases, std::int64_t vocabulary, bool gathers);
  Tensor run(const std::vector<Tensor>& inputs, Forward forward) const override;

  std::optional<Columns> output_columns() const override;

  const std::shared_ptr<const TensorSlices>& slices() const { return slices_; }
  std::int64_t vocabulary() const { return vocabulary_; }
  bool gathers() const { return gathers_; }

 private:
  std::shared_ptr<const TensorSlices> slices_;
  std::vector<nn::Parameter> weights_, biases_;
  std::int64_t vocabulary_;
  bool gathers_;
};

}  // namespace lockstep::parallel
