// MultiheadAttention whose heads are cut (AttentionParallel). Not installed.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "lockstep/nn/layers/attention_internal.h"
#include "lockstep/parallel/model_parallel/styles_internal.h"
#include "lockstep/parallel/model_parallel/tensor_region_internal.h"

namespace lockstep::parallel {

// This rank's heads of a MultiheadAttention. Its in_proj is cut as a linear layer with three parts, so each slice has
// the rows of q, k and v of its heads. The module runs in a region of its own, which out_proj, a RowwiseRunner, closes.
class AttentionRunner final : public SharedRunner, public nn::HeadSlices {
 public:
  // This rank's slices of in_proj's weight and of its bias, which may have none; `heads` of all ranks.
  AttentionRunner(std::shared_ptr<const TensorSlices> slices, const std::string& path, std::int64_t heads,
                  std::vector<nn::Parameter> weights, std::vector<nn::Parameter> biases);
  Tensor run(const std::vector<Tensor>& inputs, Forward forward) const override { return forward(inputs); }
  std::int64_t first_head() const override { return heads() * slices_->rank(); }
  std::int64_t heads() const override { return heads_ / slices_->ranks(); }
  std::int64_t all_positions(std::int64_t own) const override {
    return slices_->cuts_sequence ? own * slices_->ranks() : own;
  }
  std::vector<Tensor> project(const Tensor& query, const Tensor& key, const Tensor& value) const override;

 private:
  std::vector<Tensor> outputs(const Tensor& x, std::int64_t first, std::int64_t parts) const;

  std::shared_ptr<const TensorSlices> slices_;
  std::string path_;
  std::int64_t heads_;
  std::vector<nn::Parameter> weights_, biases_;
};

// Throws InvalidArgument, naming `op`, unless the heads of the styled MultiheadAttention can be cut, and out_proj has no
// style of its own.
void check_attention(const char* op, const StyledModule& each, const std::vector<StyledModule>& styled, int slices);

// Cuts it.
void cut_attention(const StyledModule& each, const std::shared_ptr<const TensorSlices>& slices);

}  // namespace lockstep::parallel
