#include "lockstep/tensor/ops/losses.h"

#include "lockstep/tensor/ops/wrappers_internal.h"

namespace lockstep::raw {
namespace {

double scale_of(Reduction reduction, std::int64_t count) {
  return reduction == Reduction::kMean ? 1.0 / static_cast<double>(count) : 1.0;
}

// "(2, 0)": the index of the element at `flat` in row-major order.
std::string place(const Shape& shape, std::int64_t flat) {
  Shape index = shape;
  for (int dim = shape.dim() - 1; dim >= 0; --dim) {
    const auto d = static_cast<std::size_t>(dim);
    index[d] = flat % shape[d];
    flat /= shape[d];
  }
  return index.to_string();
}

[[noreturn]] void throw_not_a_probability(const Tensor& x, std::int64_t flat) {
  const double value = select(reshape(x, {-1}), 0, flat).item<double>();
  throw InvalidArgument(
      fmt::format("bce_loss: x at {} is {}, expected 0 to 1; x is {}\n"
                  "For logits use BCEWithLogitsLoss, or apply sigmoid first",
                  place(x.shape(), flat), value, describe(x)));
}

}  // namespace

Tensor pointwise_loss(const PointwiseLoss& loss, const Tensor& x, const Tensor& target, const Tensor& pos_weight,
                      Reduction reduction) {
  const Dense xs(x), targets(target), weights(pos_weight);
  Tensor out = empty(reduction == Reduction::kNone ? x.shape() : Shape(), x.options());
  std::int64_t bad = -1;
  kernels(x.device())
      .pointwise_loss(loss, xs.data(), targets.data(), weights.data(), out.raw_data(), x.numel(), x.dtype(), reduction,
                      scale_of(reduction, x.numel()), &bad);
  if (bad >= 0) [[unlikely]]
    throw_not_a_probability(*xs, bad);
  return out;
}

Tensor pointwise_loss_backward(const PointwiseLoss& loss, const Tensor& grad, const Tensor& x, const Tensor& target,
                               const Tensor& pos_weight, Reduction reduction) {
  const Dense grads(grad), xs(x), targets(target), weights(pos_weight);
  Tensor out = empty(x.shape(), x.options());
  kernels(x.device())
      .pointwise_loss_backward(loss, grads.data(), xs.data(), targets.data(), weights.data(), out.raw_data(), x.numel(),
                               x.dtype(), reduction, scale_of(reduction, x.numel()));
  return out;
}

namespace {

Rows class_rows(const Shape& shape) {
  Rows rows{.outer = shape[0], .n = shape[1]};
  for (std::size_t dim = 2; dim < shape.size(); ++dim) rows.inner *= shape[dim];
  return rows;
}

void check_classes(const char* op, const Tensor& target, const Rows& rows, std::int64_t bad) {
  LOCKSTEP_CHECK(bad < 0, "{}: the target at {} is class {}, expected 0 to {}: there are {} classes", op,
                 place(target.shape(), bad), select(reshape(target, {-1}), 0, bad).item<std::int64_t>(), rows.n - 1,
                 rows.n);
}

}  // namespace

double* TotalWeight::place(Device device) {
  if (device.is_cpu()) return &value;
  elsewhere = empty({}, {.dtype = kFloat64, .device = device});
  return elsewhere.data<double>();
}

Tensor nll_loss(const char* op, const Tensor& y, const Tensor& target, const Tensor& weight, const NllOptions& options,
                TotalWeight* total_weight) {
  const Dense ys(y), targets(target), weights(weight);
  const Rows rows = class_rows(y.shape());
  Tensor out = empty(options.reduction == Reduction::kNone ? target.shape() : Shape(), y.options());
  std::int64_t bad = -1;
  kernels(y.device())
      .nll_loss(ys.data(), targets->data<std::int64_t>(), weights.data(), out.raw_data(), rows, y.dtype(), options,
                total_weight->place(y.device()), &bad);
  check_classes(op, *targets, rows, bad);
  return out;
}

Tensor nll_loss_backward(const Tensor& grad, const Shape& shape, const Tensor& target, const Tensor& weight,
                         const NllOptions& options, const TotalWeight& total_weight) {
  const Dense grads(grad), targets(target), weights(weight);
  Tensor out = empty(shape, grad.options());
  kernels(grad.device())
      .nll_loss_backward(grads.data(), targets->data<std::int64_t>(), weights.data(), out.raw_data(), class_rows(shape),
                         grad.dtype(), options, total_weight.place());
  return out;
}

Tensor cross_entropy(const Tensor& x, const Tensor& target, const Tensor& weight, const NllOptions& options,
                     CrossEntropyState* state) {
  const Dense xs(x), targets(target), weights(weight);
  const Rows rows = class_rows(x.shape());
  const bool reduced = options.reduction != Reduction::kNone;
  state->statistics = empty({2, rows.outer * rows.inner}, x.options());
  const Tensor losses = empty(target.shape(), x.options());
  Tensor out = reduced ? empty({}, x.options()) : losses;
  std::int64_t bad = -1;
  kernels(x.device())
      .cross_entropy(xs.data(), targets->data<std::int64_t>(), weights.data(), state->statistics.raw_data(),
                     losses.raw_data(), out.raw_data(), rows, x.dtype(), options, state->total_weight.place(x.device()),
                     &bad);
  check_classes("cross_entropy", *targets, rows, bad);
  return out;
}

Tensor cross_entropy_backward(const Tensor& grad, const Tensor& x, const Tensor& target, const Tensor& weight,
                              const NllOptions& options, const CrossEntropyState& state) {
  const Dense grads(grad), xs(x), targets(target), weights(weight);
  Tensor out = empty(x.shape(), x.options());
  kernels(x.device())
      .cross_entropy_backward(grads.data(), xs.data(), targets->data<std::int64_t>(), weights.data(),
                              state.statistics.raw_data(), out.raw_data(), class_rows(x.shape()), x.dtype(), options,
                              state.total_weight.place());
  return out;
}

}  // namespace lockstep::raw
