#include "lockstep/parallel/model_parallel/tensor_repeat_internal.h"

#include <utility>

#include "lockstep/autograd/grad_mode.h"
#include "lockstep/autograd/node.h"
#include "lockstep/autograd/ops/creation.h"
#include "lockstep/base/check_internal.h"
#include "lockstep/parallel/model_parallel/styles_internal.h"
#include "lockstep/parallel/step/micro_batch_internal.h"
#include "lockstep/tensor/ops/ops_internal.h"

namespace lockstep::parallel {
namespace {

using autograd::Gradients;
using autograd::Needs;

// The sum of the terms in canonical order; undefined terms are left out, but keep their positions in that order.
Tensor sum_of_defined(std::vector<Tensor> terms) {
  while (terms.size() > 1) {
    std::vector<Tensor> sums;
    for (std::size_t i = 0; i < terms.size(); i += 2) {
      const Tensor a = terms[i], b = i + 1 < terms.size() ? terms[i + 1] : Tensor();
      sums.push_back(a.defined() && b.defined() ? a + b : a.defined() ? a : b);
    }
    terms = std::move(sums);
  }
  return terms[0];
}

// The distinct slices of a parameter: `count` on all ranks; this rank's are `first` to `last`, inclusive.
struct Distinct {
  std::int64_t count, first, last;
  bool is_on_one_rank;  // no two ranks have slices that share a distinct one
};

Distinct distinct_of(const TensorSlices& slices, std::int64_t repeat) {
  const std::int64_t count = slices.count / repeat;
  return {.count = count,
          .first = slices.first() / repeat,
          .last = (slices.first() + slices.local() - 1) / repeat,
          .is_on_one_rank = count % slices.ranks() == 0};
}

// The gradients of this rank's distinct slices, from the gradients `grads` of all its slices.
Gradients shared_gradients(const TensorSlices& slices, std::int64_t repeat, const std::vector<Tensor>& grads) {
  const NoGradGuard no_grad;
  Tensor like;
  for (const Tensor& grad : grads) like = like.defined() ? like : grad;
  const Distinct distinct = distinct_of(slices, repeat);
  std::vector<Tensor> sums;
  for (std::int64_t d = distinct.first; d <= distinct.last; ++d) {
    std::vector<Tensor> terms;
    for (std::size_t j = 0; j < grads.size(); ++j) {
      const bool shares = (slices.first() + static_cast<std::int64_t>(j)) / repeat == d;
      terms.push_back(shares && grads[j].defined() ? widened(grads[j]) : Tensor());
    }
    sums.push_back(sum_of_defined(std::move(terms)));
    if (!sums.back().defined()) sums.back() = widened(zeros_like(like));
  }
  if (!distinct.is_on_one_rank) {
    Shape shape = like.shape();
    shape.insert(0, distinct.count);
    const Tensor all = full(shape, -0.0, sums[0].options());  // -0 changes no sum, not even one of -0
    for (std::int64_t d = distinct.first; d <= distinct.last; ++d)
      all.select(0, d).copy_(sums[static_cast<std::size_t>(d - distinct.first)]);
    slices.group->all_reduce(all, ReduceOp::kSum, {.phase = Phase::kGradients, .name = "repeated slices"})->wait();
    for (std::int64_t d = distinct.first; d <= distinct.last; ++d)
      sums[static_cast<std::size_t>(d - distinct.first)] = all.select(0, d).clone();
  }
  Gradients own;
  for (const Tensor& sum : sums) own.push_back(raw::to(sum, like.dtype()));
  return own;
}

}  // namespace

std::vector<Tensor> repeated_slices(const std::shared_ptr<const TensorSlices>& slices,
                                    const std::vector<nn::Parameter>& own, std::int64_t repeat) {
  std::vector<Tensor> inputs, of_slices;
  for (const nn::Parameter& parameter : own) inputs.push_back(parameter.tensor());
  if (repeat == 1 || own.empty()) return inputs;
  const std::int64_t first = distinct_of(*slices, repeat).first;
  for (std::int64_t j = slices->first(); j < slices->first() + slices->local(); ++j)
    of_slices.push_back(inputs[static_cast<std::size_t>(j / repeat - first)].detach());
  return autograd::record_all("tensor_repeat", std::move(of_slices), inputs,
                              [slices, repeat](autograd::Tensors& grads, const Needs&) {
                                return shared_gradients(*slices, repeat, {grads.begin(), grads.end()});
                              });
}

void check_repeat(const char* op, const std::string& path, const ColwiseParallel& style, std::int64_t outputs,
                  int slices) {
  if (style.repeat == 1 || slices == 1) return;  // one slice is the whole parameter
  std::vector<std::int64_t> possible;
  for (int n = 1; n <= slices; ++n) {
    if (slices % n == 0) possible.push_back(n);
  }
  LOCKSTEP_CHECK(slices % style.repeat == 0,
                 "{}: {}: .repeat is {}, but {} slices cannot be divided into groups of {} that share outputs; use "
                 ".repeat = {}",
                 op, path, style.repeat, slices, style.repeat, choice_of(possible));
  LOCKSTEP_CHECK(!style.gather_output,
                 "{}: {}: .repeat is {}, so slices share outputs, but .gather_output returns each output once; remove "
                 "one of the two options",
                 op, path, style.repeat);
  const std::int64_t heads = outputs / style.parts / style.multiple_of, distinct = slices / style.repeat;
  LOCKSTEP_CHECK(style.multiple_of == 1 || heads <= distinct,
                 "{}: {}: {} slices with .repeat = {} take at most {} heads, one for each group of slices that share "
                 "outputs, but there are {} heads of {} outputs; {}",
                 op, path, slices, style.repeat, distinct, heads, style.multiple_of,
                 slices % heads == 0 ? fmt::format("use .repeat = {}", slices / heads)
                                     : fmt::format("use a number of slices that {} divides", heads));
}

std::string repeat_hint(const ColwiseParallel& style, std::int64_t outputs, int slices) {
  const std::int64_t heads = outputs / style.multiple_of;
  if (style.repeat > 1 || style.parts > 1 || heads >= slices || slices % heads != 0) return {};
  return fmt::format(", or .repeat = {} if they are heads of keys and values", slices / heads);
}

}  // namespace lockstep::parallel
