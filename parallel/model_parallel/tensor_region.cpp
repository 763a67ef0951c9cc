#include "lockstep/parallel/model_parallel/tensor_region_internal.h"

#include "lockstep/autograd/grad_mode.h"
#include "lockstep/autograd/node.h"
#include "lockstep/base/check_internal.h"

namespace lockstep::parallel {

using autograd::Gradients;
using autograd::Needs;

std::vector<Tensor> enter_slices(const std::shared_ptr<const TensorSlices>& slices, const Tensor& x, Phase phase) {
  std::vector<Tensor> entered;
  for (int j = 0; j < slices->local(); ++j) entered.push_back(x.detach());
  return autograd::record_all("tensor_entry", std::move(entered), {x},
                              [slices, phase](autograd::Tensors& grads, const Needs&) {
                                std::vector<Tensor> terms(grads.begin(), grads.end());
                                if (terms.size() == 1) terms[0] = terms[0].clone();  // others may have it, too
                                return Gradients{sum_over_slices(*slices, std::move(terms), phase, "tensor entry")};
                              });
}

TensorRegion::TensorRegion(const std::shared_ptr<const TensorSlices>& slices) : slices_(slices) {
  ranks = slices->ranks();
  rank = slices->rank();
}

TensorRegion* TensorRegion::current() { return dynamic_cast<TensorRegion*>(random::slice_context()); }

const std::vector<Tensor>& TensorRegion::enter(const Tensor& x) {
  for (const auto& [input, entered] : entries_) {
    if (&input.impl() == &x.impl()) return entered;
  }
  return entries_.emplace_back(x, enter_slices(slices_, x.contiguous())).second;
}

void TensorRegion::open(const std::string& layer, std::int64_t own_columns, std::int64_t parts, bool repeated) {
  opened_by = layer;
  columns.push_back({.run = own_columns / parts, .parts = parts, .sharing = repeated ? slices_->local() : 0});
}

Tensor RegionRunner::run(const std::vector<Tensor>& inputs, Forward forward) const {
  TensorRegion region(slices_);
  const random::SliceContextGuard guard(&region);
  try {
    Tensor y = forward(inputs);
    LOCKSTEP_CHECK(!region.is_open(),
                   "parallelize: {} is ColwiseParallel, and no RowwiseParallel layer of the same module has taken its "
                   "columns; name one, or set .gather_output",
                   region.opened_by);
    return y;
  } catch (InvalidArgument& error) {
    if (!region.is_open() || slices_->ranks() == 1) throw;
    error.add_hint(fmt::format(
        "after {}, activations have this rank's {} columns; take sizes that a slice changes from the tensor, for "
        "example reshape({{t.size(0), t.size(1), -1, head_dim}})",
        region.opened_by, region.columns.back().run * region.columns.back().parts));
    throw;
  }
}

}  // namespace lockstep::parallel
