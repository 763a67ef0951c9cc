#include "lockstep/parallel/step/activation_part_internal.h"

#include <cstdint>
#include <memory>
#include <utility>

#include "lockstep/nn/module_runner_internal.h"
#include "lockstep/tensor/random/slice_context_internal.h"

namespace lockstep::parallel {
namespace {

using random::SliceContext;

ActivationPart whole(const Tensor& x) { return {x.shape(), TensorPart::whole(x.shape())}; }

// This rank has an equal share of each of `parts` equal parts of the dimension.
ActivationPart cut(const SliceContext& context, const Tensor& x, int dim, std::int64_t parts) {
  Shape shape = x.shape();
  shape[static_cast<std::size_t>(dim)] *= context.ranks;
  const TensorPart part = TensorPart::slice(shape, dim, context.rank, context.ranks, parts);
  return {std::move(shape), part};
}

ActivationPart cut_columns(const Tensor& x, const SharedRunner::Columns& columns) {
  Shape shape = x.shape();
  shape[shape.size() - 1] = columns.of;
  return {std::move(shape), {.first = columns.first, .run = columns.count, .stride = columns.of, .numel = x.numel()}};
}

// With sequence parallelism a rank has some positions.
ActivationPart outside_of_region(const SliceContext& context, const Tensor& x) {
  const bool has_positions = context.positions > 0 && x.dim() >= 2 && x.size(-2) == context.positions;
  return has_positions ? cut(context, x, x.dim() - 2, 1) : whole(x);
}

// Either the last dimension has this rank's columns, or one before it has the heads of these. Where several dimensions
// could be cut, the part is not known.
std::optional<ActivationPart> inside_region(const SliceContext& context, const Tensor& x) {
  if (context.ranks == 1) return whole(x);
  if (x.dim() == 0) return std::nullopt;
  const std::int64_t width = x.size(-1), run = context.run_of(width);
  std::optional<ActivationPart> found;
  if (run > 0) found = cut(context, x, x.dim() - 1, width / run);
  for (int dim = 1; dim < x.dim() - 1; ++dim) {
    if (!context.has_run(x.size(dim) * width)) continue;
    if (found) return std::nullopt;
    found = cut(context, x, dim, 1);
  }
  return found;
}

void add_columns(nn::Module& module, std::vector<SharedRunner::Columns>& columns) {
  for (const auto& runner : shared_runners(module)) {
    if (const auto own = runner->output_columns()) columns.push_back(*own);
  }
}

}  // namespace

ModuleActivations::ModuleActivations(nn::Module& module) {
  add_columns(module, columns_);
  for (const auto& runner : nn::runners_of(module)) {
    const auto* const shared = dynamic_cast<const SharedRunner*>(runner.get());
    opens_region_ = opens_region_ || (shared && shared->opens_region());
    closes_region_ = closes_region_ || (shared && shared->closes_region());
  }
}

std::optional<ActivationPart> ModuleActivations::of_input(const Tensor& x) const {
  const SliceContext* const context = random::slice_context();
  if (!context) return whole(x);
  if (context->is_in_slice) return std::nullopt;
  if (!context->is_open() || opens_region_) return outside_of_region(*context, x);
  return closes_region_ && x.dim() > 0 ? cut(*context, x, x.dim() - 1, 1) : inside_region(*context, x);
}

std::optional<ActivationPart> ModuleActivations::of_output(const Tensor& y) const {
  const SliceContext* const context = random::slice_context();
  if (context && context->is_in_slice) return std::nullopt;
  if (context && context->is_open())
    return opens_region_ ? cut(*context, y, y.dim() - 1, context->columns.back().parts) : inside_region(*context, y);
  for (const SharedRunner::Columns& each : columns_) {
    if (y.dim() > 0 && y.size(-1) == each.count) return cut_columns(y, each);
  }
  return context ? outside_of_region(*context, y) : whole(y);
}

}  // namespace lockstep::parallel
