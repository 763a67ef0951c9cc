#include "lockstep/parallel/model_parallel/tensor_region_internal.h"

#include <algorithm>
#include <string_view>

#include "lockstep/autograd/grad_mode.h"
#include "lockstep/autograd/node.h"
#include "lockstep/base/check_internal.h"
#include "lockstep/base/finally_internal.h"
#include "lockstep/parallel/step/micro_batch_internal.h"

namespace lockstep::parallel {

using autograd::Gradients;
using autograd::Needs;

namespace {

// Aliases of `whole`, one for each slice, whose gradients `sum` adds.
template <class Sum>
std::vector<Tensor> aliases(const char* name, const TensorSlices& slices, const Tensor& whole, const Tensor& x,
                            Sum sum) {
  std::vector<Tensor> copies;
  for (int j = 0; j < slices.local(); ++j) copies.push_back(whole.detach());
  return autograd::record_all(name, std::move(copies), {x}, [sum](autograd::Tensors& grads, const Needs&) {
    std::vector<Tensor> terms(grads.begin(), grads.end());
    if (terms.size() == 1) terms[0] = terms[0].clone();  // others may have it, too
    return Gradients{sum(std::move(terms))};
  });
}

}  // namespace

std::vector<Tensor> copies_for_slices(const std::shared_ptr<const TensorSlices>& slices, const Tensor& x,
                                      const std::shared_ptr<const void>& kept) {
  return aliases("tensor_copies", *slices, x, x, [slices, kept](std::vector<Tensor> terms) {
    return sum_over_slices(*slices, std::move(terms), Phase::kActivationGradients, "tensor entry");
  });
}

std::vector<Tensor> enter_slices(const std::shared_ptr<const TensorSlices>& slices, const Tensor& x) {
  if (!slices->cuts_sequence) return copies_for_slices(slices, x.contiguous());
  const Tensor whole = gather_positions(*slices, x.detach(), Phase::kActivations, "tensor entry");
  return aliases("tensor_entry", *slices, whole, x, [slices](std::vector<Tensor> terms) {
    return scatter_over_slices(*slices, std::move(terms), Phase::kActivationGradients, "tensor entry");
  });
}

namespace {

// Every term has the sum's gradient.
Tensor sum_of_terms(const std::shared_ptr<const TensorSlices>& slices, const std::vector<Tensor>& terms) {
  std::vector<Tensor> detached;
  for (const Tensor& term : terms) detached.push_back(term.detach());
  const char* const name = "tensor exit";
  const Tensor sum = slices->cuts_sequence
                         ? scatter_over_slices(*slices, std::move(detached), Phase::kActivations, name)
                         : sum_over_slices(*slices, std::move(detached), Phase::kActivations, name);
  return autograd::record(
      "tensor_exit", sum, terms, [slices, count = terms.size(), name](const Tensor& grad, const Needs&) {
        const Tensor whole =
            slices->cuts_sequence ? gather_positions(*slices, grad, Phase::kActivationGradients, name) : grad;
        Gradients out;
        for (std::size_t j = 0; j < count; ++j) out.push_back(whole);
        return out;
      });
}

// Piece `j` of this rank's positions, as rows.
Tensor rows_of_piece(const TensorSlices& slices, const Tensor& x, int j) {
  const std::int64_t each = x.size(-2) / slices.local();
  return x.narrow(-2, j * each, each).reshape({-1, x.size(-1)});
}

// The gradient of the bias is the sum over pieces of the sums over their rows.
Tensor with_bias(const std::shared_ptr<const TensorSlices>& slices, const Tensor& y, const Tensor& bias) {
  if (!slices->cuts_sequence) return y + bias.to(y.dtype());
  Tensor sum;
  {
    const NoGradGuard no_grad;
    sum = y.detach() + bias.detach().to(y.dtype());
  }
  return autograd::record("piece_bias", sum, {y, bias}, [slices](const Tensor& grad, const Needs& needs) {
    if (!needs[1]) return Gradients{grad, Tensor()};
    std::vector<Tensor> terms;
    for (int j = 0; j < slices->local(); ++j) terms.push_back(widened(rows_of_piece(*slices, grad, j)).sum({0}));
    return Gradients{grad, sum_over_slices(*slices, std::move(terms), Phase::kActivationGradients, "bias")};
  });
}

// The positions of all ranks. All compute the same from them, so that each has the gradient of its own positions.
Tensor all_positions(const std::shared_ptr<const TensorSlices>& slices, const Tensor& own) {
  const Tensor all = gather_positions(*slices, own.detach(), Phase::kActivations, "result");
  return autograd::record("gather_positions", all, {own},
                          [slices, time = own.size(-2)](const Tensor& grad, const Needs&) {
                            return Gradients{grad.narrow(-2, slices->rank() * time, time).contiguous()};
                          });
}

}  // namespace

Tensor leave_slices(const std::shared_ptr<const TensorSlices>& slices, const std::vector<Tensor>& terms,
                    const Tensor& bias) {
  const Tensor sum = sum_of_terms(slices, terms);
  return bias.defined() ? with_bias(slices, sum, bias) : sum;
}

namespace {

// The views in which a module's parameters are copies, one for each slice. A graph refers to the views, which it owns by
// the nodes of the copies; so the views have the copies only while the module runs.
using Views = std::vector<nn::ReplicaView>;

std::shared_ptr<Views> views_of(const std::shared_ptr<const TensorSlices>& slices,
                                const std::vector<nn::Parameter>& parameters, const std::vector<nn::Buffer>& buffers) {
  const auto views = std::make_shared<Views>(static_cast<std::size_t>(slices->local()));
  const nn::ReplicaView* const around = nn::current_replica_view();
  for (const nn::Buffer& buffer : buffers) {
    const Tensor* const replica = around ? around->find(buffer.id()) : nullptr;
    for (nn::ReplicaView& view : *views) {
      if (replica) view.set(buffer.id(), *replica);
    }
  }
  for (const nn::Parameter& parameter : parameters) {
    const std::vector<Tensor> copies = copies_for_slices(slices, parameter.tensor(), views);
    for (std::size_t j = 0; j < views->size(); ++j) (*views)[j].set(parameter.id(), copies[j]);
  }
  return views;
}

}  // namespace

std::vector<Tensor> run_for_slices(const std::shared_ptr<const TensorSlices>& slices,
                                   const std::vector<nn::Parameter>& parameters, const std::vector<nn::Buffer>& buffers,
                                   const std::vector<Tensor>& inputs, nn::ModuleRunner::Forward forward) {
  random::SliceContext* const context = random::slice_context();
  if (context) context->is_in_slice = true;
  const Finally outside([&] {
    if (context) context->is_in_slice = false;
  });
  std::vector<Tensor> results;
  if (std::ranges::none_of(parameters, [](const nn::Parameter& each) { return each->requires_grad(); })) {
    for (const Tensor& input : inputs) results.push_back(forward({input}));
    return results;
  }
  const std::shared_ptr<Views> views = views_of(slices, parameters, buffers);
  const Finally empty([&] {
    for (nn::ReplicaView& view : *views) view = {};
  });
  for (std::size_t j = 0; j < inputs.size(); ++j) {
    const nn::ReplicaViewGuard guard(&(*views)[j]);
    results.push_back(forward({inputs[j]}));
  }
  return results;
}

TensorRegion::TensorRegion(const std::shared_ptr<const TensorSlices>& slices) : slices_(slices), outer_(current()) {
  ranks = slices->ranks();
  rank = slices->rank();
  if (const random::SliceContext* const around = random::slice_context()) positions = around->positions;
}

void require_positions(const Tensor& x, std::int64_t positions) {
  LOCKSTEP_CHECK(
      positions > 0,
      "no layer has divided the sequence yet: with .sequence_parallel a model begins with an Embedding that is "
      "VocabParallel or SequenceParallel; call the model itself");
  LOCKSTEP_CHECK(x.dim() >= 2 && x.size(-2) == positions,
                 "x is {}, expected (..., {}, columns): with .sequence_parallel, the positions of this rank",
                 describe(x), positions);
}

// Recomputation has the positions of forward already.
void begin_pieces(const TensorSlices& slices, std::int64_t time) {
  LOCKSTEP_CHECK(time % slices.count == 0, "{} positions cannot be cut into {} pieces; use sequences of {} positions",
                 time, slices.count, (time / slices.count + 1) * slices.count);
  for (TensorRegion* region = TensorRegion::current(); region; region = region->outer_)
    region->positions = time / slices.ranks();
}

std::shared_ptr<random::SliceContext> TensorRegion::fresh() const {
  const auto region = std::make_shared<TensorRegion>(slices_);
  region->continue_from(*this);
  return region;
}

TensorRegion* TensorRegion::current() { return dynamic_cast<TensorRegion*>(random::slice_context()); }

const std::vector<Tensor>& TensorRegion::enter(const Tensor& x) {
  const bool has_history = autograd::grad_mode() && x.requires_grad();
  for (const Entry& each : entries_) {
    const bool is_same = &each.input.impl() == &x.impl() && each.version == x.version();
    if (is_same && each.has_history == has_history) return each.entered;
  }
  if (slices_->cuts_sequence) require_positions(x, positions);
  return entries_.emplace_back(Entry{x, x.version(), has_history, enter_slices(slices_, x)}).entered;
}

void TensorRegion::open(const std::string& layer, const Columns& own) {
  opened_by = layer;
  columns.push_back(own);
}

std::vector<nn::TensorHandle> whole_tensors(const nn::Module& module) {
  std::vector<nn::TensorHandle> whole;
  for (const nn::Parameter& parameter : module.parameters()) {
    if (!parameter.slice()) whole.push_back(parameter);
  }
  for (const nn::Buffer& buffer : module.buffers()) whole.push_back(buffer);
  return whole;
}

Tensor RegionRunner::run(const std::vector<Tensor>& inputs, Forward forward) const {
  TensorRegion region(slices_);
  const random::SliceContextGuard guard(&region);
  Tensor y;
  try {
    y = forward(inputs);
  } catch (InvalidArgument& error) {
    const bool has_said_so = std::string_view(error.what()).find("of this rank") != std::string_view::npos;
    if (region.is_open() && slices_->ranks() > 1 && !has_said_so)
      error.add_hint(fmt::format(
          "after {}, activations have this rank's {} columns; take sizes that a slice changes from the tensor, for "
          "example reshape({{t.size(0), t.size(1), -1, head_dim}})",
          region.opened_by, region.columns.back().run * region.columns.back().parts));
    throw;
  }
  LOCKSTEP_CHECK(!region.is_open(),
                 "parallelize: {} is ColwiseParallel, and no RowwiseParallel layer of the same module has taken its "
                 "columns; name one, or set .gather_output",
                 region.opened_by);
  const bool is_cut = slices_->cuts_sequence && slices_->ranks() > 1 && y.dim() >= 2 && y.size(-2) == region.positions;
  return is_model_ && is_cut ? all_positions(slices_, y) : y;
}

}  // namespace lockstep::parallel
