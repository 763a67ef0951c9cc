#include "lockstep/parallel/model_parallel/tensor_vocab_internal.h"

#include <utility>

#include "lockstep/autograd/grad_mode.h"
#include "lockstep/autograd/node.h"
#include "lockstep/autograd/ops/creation.h"
#include "lockstep/base/check_internal.h"
#include "lockstep/parallel/model_parallel/tensor_parts_internal.h"
#include "lockstep/tensor/ops/ops_internal.h"

namespace lockstep::parallel {

using autograd::Gradients;
using autograd::Needs;

namespace {

void check_indices(const Tensor& flat, std::int64_t rows, std::int64_t dim) {
  if (flat.numel() == 0) return;
  const auto low = flat.min().item<std::int64_t>(), high = flat.max().item<std::int64_t>();
  const std::int64_t wrong = low < 0 ? low : high;
  LOCKSTEP_CHECK(wrong >= 0 && wrong < rows, "Embedding({}, {}): index {} is outside [0, {})", rows, dim, wrong, rows);
}

// One row for each position: those that this rank has, where they belong, summed with those of the other ranks. `shape` is
// that of all positions.
Tensor placed_rows(const std::shared_ptr<const TensorSlices>& slices, const std::vector<Tensor>& rows,
                   const std::vector<Tensor>& positions, const Shape& shape) {
  const NoGradGuard no_grad;
  const std::int64_t width = rows[0].size(1);
  const Tensor own = raw::full({width > 0 ? shape.numel() / width : 0, width}, -0.0, rows[0].options());
  for (std::size_t j = 0; j < rows.size(); ++j) own.index_put_({positions[j]}, rows[j].detach());
  const Tensor terms = own.reshape(shape);
  return slices->cuts_sequence ? scatter_over_slices(*slices, {terms}, Phase::kActivations, "embedding")
                               : sum_over_slices(*slices, {terms}, Phase::kActivations, "embedding");
}

Tensor with_rows(const std::shared_ptr<const TensorSlices>& slices, const std::vector<Tensor>& rows,
                 const std::vector<Tensor>& positions, const Shape& shape) {
  return autograd::record("vocab_rows", placed_rows(slices, rows, positions, shape), rows,
                          [slices, positions](const Tensor& grad, const Needs&) {
                            Tensor all = grad;
                            if (slices->cuts_sequence)
                              all = gather_positions(*slices, grad, Phase::kActivationGradients, "embedding");
                            Gradients out;
                            for (const Tensor& each : positions)
                              out.push_back(index_select(all.reshape({-1, all.size(-1)}), 0, each));
                            return out;
                          });
}

}  // namespace

VocabEmbeddingRunner::VocabEmbeddingRunner(std::shared_ptr<const TensorSlices> slices,
                                           std::vector<nn::Parameter> weights, std::int64_t rows,
                                           std::optional<std::int64_t> padding_idx)
    : SharedRunner(Part::kModel, slices->group, slices->mesh), slices_(std::move(slices)), weights_(std::move(weights)),
      rows_(rows), padding_idx_(padding_idx) {}

Tensor VocabEmbeddingRunner::run(const std::vector<Tensor>& inputs, Forward /*forward*/) const {
  LOCKSTEP_CHECK(inputs.size() == 1, "VocabParallel: called with {} inputs, expected 1", inputs.size());
  const Tensor& index = inputs[0];
  LOCKSTEP_CHECK(index.dtype() == kInt64 || index.dtype() == kInt32, "embedding: the index is {}, expected i64 or i32",
                 describe(index));
  const Tensor flat = index.reshape({-1}).to(kInt64);
  check_indices(flat, rows_, weights_[0]->size(1));
  std::vector<Tensor> rows, positions;
  for (std::size_t j = 0; j < weights_.size(); ++j) {
    const auto [first, count] = rows_of_slice(rows_, slices_->first() + static_cast<std::int64_t>(j), slices_->count);
    const Tensor is_here = logical_and(flat >= first, flat < first + count);
    positions.push_back(nonzero(is_here).reshape({-1}));
    const Tensor own = index_select(flat, 0, positions[j]) - first;
    rows.push_back(index_select(weights_[j], 0, own));
    if (padding_idx_ && rows[j].requires_grad())
      rows[j] = where((own == *padding_idx_ - first).unsqueeze(1), rows[j].detach(), rows[j]);
  }
  Shape shape = index.shape();
  shape.push_back(weights_[0]->size(1));
  if (slices_->cuts_sequence) begin_pieces(*slices_, index.dim() > 0 ? index.size(-1) : 1);
  return with_rows(slices_, rows, positions, shape);
}

VocabLinearRunner::VocabLinearRunner(std::shared_ptr<const TensorSlices> slices, std::vector<nn::Parameter> weights,
                                     std::vector<nn::Parameter> biases, std::int64_t vocabulary, bool gathers)
    : SharedRunner(Part::kModel, slices->group, slices->mesh), slices_(std::move(slices)), weights_(std::move(weights)),
      biases_(std::move(biases)), vocabulary_(vocabulary), gathers_(gathers) {}

namespace {

// The logits of the whole vocabulary. All ranks compute the same from them, so that each has their gradient.
Tensor gather_vocabulary(const std::shared_ptr<const TensorSlices>& slices, const Tensor& own,
                         std::int64_t vocabulary) {
  if (slices->ranks() == 1) return own;
  const std::int64_t first = rows_of_slice(vocabulary, slices->first(), slices->count).first, count = own.size(-1);
  const std::int64_t most = slices->local() * rows_of_slice(vocabulary, 0, slices->count).count;
  Tensor all;
  {
    const NoGradGuard no_grad;
    Tensor padded = own.detach();
    if (count < most) {
      Shape rest = own.shape();
      rest[rest.size() - 1] = most - count;
      padded = cat({padded, raw::full(rest, 0, own.options())}, -1);
    }
    all = gather_columns(*slices, padded, "logits").narrow(-1, 0, vocabulary).contiguous();
  }
  return autograd::record("gather_vocabulary", all, {own}, [first, count](const Tensor& grad, const Needs&) {
    return Gradients{grad.narrow(-1, first, count).contiguous()};
  });
}

}  // namespace

Tensor VocabLinearRunner::run(const std::vector<Tensor>& inputs, Forward /*forward*/) const {
  LOCKSTEP_CHECK(inputs.size() == 1, "VocabParallel: called with {} inputs, expected 1", inputs.size());
  const Tensor& x = inputs[0];
  LOCKSTEP_CHECK(x.dim() >= 1 && x.size(-1) == weights_[0]->size(1), "linear: x is {}, expected {} columns",
                 describe(x), weights_[0]->size(1));
  TensorRegion* const region = TensorRegion::current();
  const std::vector<Tensor> entered = region ? region->enter(x) : enter_slices(slices_, x);
  std::vector<Tensor> logits;
  for (std::size_t j = 0; j < weights_.size(); ++j)
    logits.push_back(linear(entered[j], weights_[j], biases_.empty() ? Tensor() : biases_[j].tensor()));
  const Tensor own = join_parts(logits, -1);
  return gathers_ ? gather_vocabulary(slices_, own, vocabulary_) : own;
}

std::optional<SharedRunner::Columns> VocabLinearRunner::output_columns() const {
  if (gathers_ || slices_->ranks() == 1) return std::nullopt;
  Columns columns{
      .first = rows_of_slice(vocabulary_, slices_->first(), slices_->count).first, .count = 0, .of = vocabulary_};
  for (const nn::Parameter& weight : weights_) columns.count += weight.master().size(0);
  return columns;
}

}  // namespace lockstep::parallel
