#include "lockstep/parallel/model_parallel/tensor_sequence_internal.h"

#include <utility>

#include "lockstep/autograd/grad_mode.h"
#include "lockstep/autograd/node.h"
#include "lockstep/autograd/ops/creation.h"
#include "lockstep/base/check_internal.h"
#include "lockstep/nn/layers/layers.h"

namespace lockstep::parallel {

using autograd::Gradients;
using autograd::Needs;

namespace {

// x's pieces side by side; their gradients are contiguous.
Tensor join_pieces(const std::vector<Tensor>& pieces) {
  if (pieces.size() == 1) return with_contiguous_gradient(pieces[0]);
  Tensor joined;
  {
    const NoGradGuard no_grad;
    std::vector<Tensor> detached;
    for (const Tensor& piece : pieces) detached.push_back(piece.detach());
    joined = cat(detached, -2);
  }
  return autograd::record("join_pieces", joined, pieces, [count = pieces.size()](const Tensor& grad, const Needs&) {
    const std::int64_t each = grad.size(-2) / static_cast<std::int64_t>(count);
    Gradients out;
    for (std::size_t j = 0; j < count; ++j)
      out.push_back(grad.narrow(-2, static_cast<std::int64_t>(j) * each, each).contiguous());
    return out;
  });
}

// The opposite.
std::vector<Tensor> split_pieces(const Tensor& x, int count) {
  if (count == 1) return {x};
  const std::int64_t each = x.size(-2) / count;
  std::vector<Tensor> pieces;
  for (int j = 0; j < count; ++j) pieces.push_back(x.detach().narrow(-2, j * each, each).contiguous());
  return autograd::record_all("split_pieces", std::move(pieces), {x}, [](autograd::Tensors& grads, const Needs&) {
    std::vector<Tensor> all(grads.begin(), grads.end());
    Tensor like;
    for (const Tensor& grad : all) like = grad.defined() ? grad : like;
    for (Tensor& grad : all) grad = grad.defined() ? grad : zeros_like(like);
    return Gradients{cat(all, -2)};
  });
}

}  // namespace

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
    pieces = split_pieces(x, slices_->local());
  }
  return join_pieces(run_for_slices(slices_, parameters_, buffers_, pieces, forward));
}

}  // namespace lockstep::parallel
