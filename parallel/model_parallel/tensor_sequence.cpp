#include "lockstep/parallel/model_parallel/tensor_sequence_internal.h"

#include <utility>

#include "lockstep/base/check_internal.h"
#include "lockstep/nn/layers/layers.h"
#include "lockstep/parallel/model_parallel/tensor_parts_internal.h"

namespace lockstep::parallel {

PiecesRunner::PiecesRunner(std::shared_ptr<const TensorSlices> slices, const nn::Module& module)
    : SharedRunner(Part::kModel, slices->group, slices->mesh), slices_(std::move(slices)),
      parameters_(module.parameters()), buffers_(module.buffers()),
      takes_indices_(dynamic_cast<const nn::Embedding*>(&module) != nullptr) {}

Tensor PiecesRunner::run(const std::vector<Tensor>& inputs, Forward forward) const {
  const random::SliceContext* const context = random::slice_context();
  const bool is_named_call = inputs.empty();  // by forward with other arguments, inside of this one
  if ((context && context->is_open()) || is_named_call || parameters_.empty()) return forward(inputs);
  LOCKSTEP_CHECK(context,
                 "SequenceParallel: runs outside of a call of the model; call model(x), and not its forward by "
                 "name");
  LOCKSTEP_CHECK(inputs.size() == 1, "SequenceParallel: called with {} inputs, expected 1", inputs.size());
  const Tensor& x = inputs[0];
  std::vector<Tensor> pieces;
  if (takes_indices_) {
    begin_pieces(*slices_, x.dim() > 0 ? x.size(-1) : 1);
    const std::int64_t each = x.size(-1) / slices_->count;
    for (int j = 0; j < slices_->local(); ++j) pieces.push_back(x.narrow(-1, (slices_->first() + j) * each, each));
  } else {
    require_positions(x, context->positions);
    pieces = split_parts(x, -2, slices_->local());
  }
  return join_parts(run_for_slices(slices_, parameters_, buffers_, pieces, forward), -2);
}

}  // namespace lockstep::parallel
