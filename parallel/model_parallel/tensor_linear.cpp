#include "lockstep/parallel/model_parallel/tensor_linear_internal.h"

#include <algorithm>
#include <utility>

#include "lockstep/autograd/grad_mode.h"
#include "lockstep/autograd/node.h"
#include "lockstep/autograd/ops/autocast_internal.h"
#include "lockstep/autograd/ops/creation.h"
#include "lockstep/autograd/ops/operations_internal.h"
#include "lockstep/base/check_internal.h"
#include "lockstep/parallel/model_parallel/tensor_parts_internal.h"
#include "lockstep/parallel/model_parallel/tensor_repeat_internal.h"
#include "lockstep/tensor/ops/ops_internal.h"

namespace lockstep::parallel {

using autograd::Gradients;
using autograd::Needs;
using autograd::Saved;

namespace {

// The columns of one slice among those of `slices`: its share of each of `parts`.
std::vector<Tensor> columns_of(const Tensor& x, std::int64_t parts, std::size_t slices, std::size_t slice) {
  const auto count = static_cast<std::int64_t>(slices);
  const std::int64_t each = x.size(-1) / parts / count;
  std::vector<Tensor> columns;
  for (std::int64_t p = 0; p < parts; ++p)
    columns.push_back(x.narrow(-1, (p * count + static_cast<std::int64_t>(slice)) * each, each));
  return columns;
}

Tensor joined(const std::vector<Tensor>& columns) {
  return columns.size() == 1 ? columns[0].contiguous() : cat(columns, -1);
}

// The columns of all ranks. All of them compute the same from these, so that each has their gradient.
Tensor gathered_columns(const std::shared_ptr<const TensorSlices>& slices, const Tensor& own, std::int64_t parts) {
  const int ranks = slices->ranks(), rank = slices->rank();
  if (ranks == 1) return own;
  Tensor all;
  {
    const NoGradGuard no_grad;
    std::vector<Tensor> columns;  // of each part, those of all ranks
    for (const Tensor& part : chunk(own.detach(), static_cast<int>(parts), -1))
      columns.push_back(gather_columns(*slices, part, "outputs"));
    all = joined(columns);
  }
  return autograd::record("gather_columns", all, {own}, [=](const Tensor& grad, const Needs&) {
    return Gradients{joined(columns_of(grad, parts, static_cast<std::size_t>(ranks), static_cast<std::size_t>(rank)))};
  });
}

// The product of each slice's columns of x with its weight, (..., in) with (out, in), to be added by leave_slices. Saves x
// itself, where linear() would save a copy of each slice's columns.
std::vector<Tensor> products_of_slices(const Tensor& x, const std::vector<Tensor>& weights) {
  const std::size_t count = weights.size();
  if (count == 1) return {linear(x.contiguous(), weights[0], Tensor())};
  if (narrows(x, weights[0])) {
    std::vector<Tensor> of_products;
    for (const Tensor& weight : weights) of_products.push_back(narrowed(weight));
    return products_of_slices(narrowed(x), of_products);
  }
  const auto columns = [count](const Tensor& all, std::size_t slice) {
    return joined(columns_of(all, 1, count, slice));
  };
  std::vector<Tensor> terms, inputs{x};
  std::vector<Saved> saved;
  for (const Tensor& weight : weights) {
    terms.push_back(raw::linear(columns(x.detach(), terms.size()), weight, Tensor()));
    inputs.push_back(weight);
    saved.emplace_back(weight, autograd::requires_grad(x));
  }
  const bool has_trained =
      std::ranges::any_of(weights, [](const Tensor& each) { return autograd::requires_grad(each); });
  return autograd::record_all("products_of_slices", std::move(terms), inputs,
                              [=, x = Saved(x, has_trained)](autograd::Tensors& grads, const Needs& needs) {
                                std::vector<Tensor> of_columns;
                                for (std::size_t j = 0; j < count && needs[0]; ++j)
                                  of_columns.push_back(matmul(grads[j], *saved[j]));
                                Gradients out{needs[0] ? cat(of_columns, -1) : Tensor()};
                                for (std::size_t j = 0; j < count; ++j) {
                                  Tensor g, flat;
                                  out.push_back(needs[1 + j] ? matmul(as_rows(grads[j], g).transpose(0, 1),
                                                                      as_rows(columns(*x, j), flat), needs.view(1 + j))
                                                             : Tensor());
                                }
                                return out;
                              });
}

const Tensor& only_input(const char* style, const std::vector<Tensor>& inputs) {
  LOCKSTEP_CHECK(inputs.size() == 1, "{}: called with {} inputs, expected 1", style, inputs.size());
  return inputs[0];
}

}  // namespace

Tensor join_columns(const std::vector<Tensor>& of_slices, std::int64_t parts) {
  if (of_slices.size() == 1) return with_contiguous_gradient(of_slices[0]);
  std::vector<Tensor> columns;
  {
    const NoGradGuard no_grad;
    for (std::int64_t p = 0; p < parts; ++p) {
      for (const Tensor& slice : of_slices) {
        const std::int64_t each = slice.size(-1) / parts;
        columns.push_back(slice.detach().narrow(-1, p * each, each));
      }
    }
    columns = {cat(columns, -1)};
  }
  const std::size_t count = of_slices.size();
  return autograd::record("join_columns", columns[0], of_slices, [count, parts](const Tensor& grad, const Needs&) {
    Gradients out;
    for (std::size_t j = 0; j < count; ++j) out.push_back(joined(columns_of(grad, parts, count, j)));
    return out;
  });
}

ColwiseRunner::ColwiseRunner(std::shared_ptr<const TensorSlices> slices, const std::string& path,
                             const ColwiseParallel& style, std::vector<nn::Parameter> weights,
                             std::vector<nn::Parameter> biases)
    : SharedRunner(Part::kModel, slices->group, slices->mesh), slices_(std::move(slices)), path_(path), style_(style),
      weights_(std::move(weights)), biases_(std::move(biases)) {}

Tensor ColwiseRunner::run(const std::vector<Tensor>& inputs, Forward /*forward*/) const {
  const Tensor& x = only_input("ColwiseParallel", inputs);
  LOCKSTEP_CHECK(x.dim() >= 1 && x.size(-1) == weights_[0]->size(1), "linear: x is {}, expected {} columns",
                 describe(x), weights_[0]->size(1));
  TensorRegion* const region = TensorRegion::current();
  LOCKSTEP_CHECK(
      region || style_.gather_output,
      "ColwiseParallel: {} runs outside of a call of the module that has it; call that module, module(x), and "
      "not its forward by name",
      path_);
  const std::vector<Tensor> entered = region ? region->enter(x) : enter_slices(slices_, x);
  const std::vector<Tensor> weights = repeated_slices(slices_, weights_, style_.repeat),
                            biases = repeated_slices(slices_, biases_, style_.repeat);
  std::vector<Tensor> outputs;
  for (std::size_t j = 0; j < weights.size(); ++j)
    outputs.push_back(linear(entered[j], weights[j], biases.empty() ? Tensor() : biases[j]));
  const Tensor y = join_columns(outputs, style_.parts);
  if (style_.gather_output) return gathered_columns(slices_, y, style_.parts);
  if (region)
    region->open(path_, {.run = y.size(-1) / style_.parts,
                         .parts = style_.parts,
                         .sharing = style_.repeat > 1 ? slices_->local() : 0,
                         .storage = y.impl().storage});
  return y;
}

RowwiseRunner::RowwiseRunner(std::shared_ptr<const TensorSlices> slices, std::vector<nn::Parameter> weights,
                             const nn::Parameter& bias)
    : SharedRunner(Part::kModel, slices->group, slices->mesh), slices_(std::move(slices)), weights_(std::move(weights)),
      bias_(bias) {}

Tensor RowwiseRunner::run(const std::vector<Tensor>& inputs, Forward /*forward*/) const {
  const Tensor& x = only_input("RowwiseParallel", inputs);
  if (TensorRegion* const region = TensorRegion::current()) region->close();
  const std::int64_t columns = weights_[0]->size(1) * slices_->local();
  LOCKSTEP_CHECK(x.dim() >= 1 && x.size(-1) == columns,
                 "linear: x is {}, expected {} columns, those of this rank's {} of {} slices; take the number of heads "
                 "from the tensor: reshape({{t.size(0), t.size(1), -1, head_dim}})",
                 describe(x), columns, slices_->local(), slices_->count);
  const std::vector<Tensor> terms = products_of_slices(x, std::vector<Tensor>(weights_.begin(), weights_.end()));
  return leave_slices(slices_, terms, bias_.master().defined() ? bias_.tensor() : Tensor());
}

}  // namespace lockstep::parallel
