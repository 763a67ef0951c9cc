#include "lockstep/nn/layers/losses.h"

#include "lockstep/autograd/ops/autocast_internal.h"
#include "lockstep/autograd/ops/creation.h"
#include "lockstep/autograd/ops/operations_internal.h"
#include "lockstep/base/check_internal.h"
#include "lockstep/base/warning.h"

namespace lockstep::nn {
namespace {

using raw::PointwiseLoss;

bool computes(DType dtype) { return dtype == kFloat32 || dtype == kFloat64; }

template <class Options>
bool widens_loss(const Tensor& x, const Tensor& target, const Options& options) {
  if (any_half(x, target)) return true;
  if constexpr (requires { options.pos_weight; })
    return widens(x, options.weight, options.pos_weight);
  else if constexpr (requires { options.weight; })
    return widens(x, options.weight);
  return false;
}

// loss(x, target, options) with f16 and bf16 operands as f32. The result is rounded once, or f32 under autocast.
template <class Options>
Tensor computed_in_f32(Tensor (*loss)(const Tensor&, const Tensor&, const Options&), const Tensor& x,
                       const Tensor& target, Options options) {
  if constexpr (requires { options.weight; }) options.weight = in_f32(options.weight);
  if constexpr (requires { options.pos_weight; }) options.pos_weight = in_f32(options.pos_weight);
  return rounded_result(loss(in_f32(x), in_f32(target), options), promote(x.dtype(), target.dtype()));
}

void check_operands(const char* op, const Tensor& x, const Tensor& target) {
  require_defined(op, x, "x", target, "target");
  LOCKSTEP_CHECK(computes(x.dtype()), "{}: x is {}, expected f32 or f64", op, describe(x));
  LOCKSTEP_CHECK(x.dtype() == target.dtype(), "{}: dtypes differ: x is {}, target is {}\nconvert one with .to(...)", op,
                 describe(x), describe(target));
  LOCKSTEP_CHECK(x.device() == target.device(), "{}: devices differ: x is {}, target is {}", op, describe(x),
                 describe(target));
}

void check_shapes(const char* op, const Tensor& x, const Tensor& target) {
  LOCKSTEP_CHECK(x.shape() == target.shape(), "{}: shapes differ: x is {}, target is {}{}", op, describe(x),
                 describe(target),
                 x.numel() == target.numel() ? "\nreshape one of them, for example target.unsqueeze(1)" : "");
}

// The factor of each loss in the reduction: 1 / count for a mean, otherwise 1.
double scale_of(Reduction reduction, std::int64_t count) {
  return reduction == Reduction::kMean ? 1.0 / static_cast<double>(count) : 1.0;
}

// d loss / d x in public operations, for second derivatives. The fused kernels compute the same values.
Tensor derivative(const PointwiseLoss& loss, const Tensor& x, const Tensor& y, const Tensor& pos_weight) {
  switch (loss.kind) {
    case PointwiseLoss::kBce:
      return (x - y) / clamp_min(x * (1.0 - x), 1e-12f);
    case PointwiseLoss::kBceWithLogits: {
      const Tensor positive = pos_weight.defined() ? y * pos_weight : y;
      return (positive + (1.0 - y)) * sigmoid(x) - positive;
    }
    case PointwiseLoss::kMse:
      return (x - y) * 2.0;
    case PointwiseLoss::kHuber:
      return clamp(x - y, -loss.delta, loss.delta);
    case PointwiseLoss::kL1:
      break;
  }
  return (x > y).to(x.dtype()) - (x < y).to(x.dtype());
}

// True for functions of x - target: their derivatives with respect to x and to the target differ in sign alone.
bool of_difference(const PointwiseLoss& loss) { return loss.kind >= PointwiseLoss::kMse; }

// d loss / d target of the others.
Tensor target_derivative(const PointwiseLoss& loss, const Tensor& x, const Tensor& pos_weight) {
  if (loss.kind == PointwiseLoss::kBce) return clamp_min(log(1.0 - x), -100) - clamp_min(log(x), -100);
  return pos_weight.defined() ? (pos_weight - 1.0) * softplus(-x) - x : -x;
}

Tensor pointwise(const char* op, const PointwiseLoss& loss, const Tensor& x, const Tensor& target,
                 const Tensor& pos_weight, Reduction reduction) {
  return record(op, raw::pointwise_loss(loss, x, target, pos_weight, reduction), {x, target},
                [loss, reduction, x = Saved(x), y = Saved(target), p = Saved(pos_weight)](const Tensor& grad,
                                                                                          const Needs& needs) {
                  const auto scaled = [&] { return grad * scale_of(reduction, x->numel()); };
                  const auto by_x = [&] {  // does not depend on needs[1]: a split backward asks for one at a time
                    if (autograd::grad_mode()) return scaled() * derivative(loss, *x, *y, *p);
                    return raw::pointwise_loss_backward(loss, grad, *x, *y, *p, reduction);
                  };
                  const bool negated = needs[1] && of_difference(loss);
                  Gradients gradients{needs[0] || negated ? by_x() : Tensor(), Tensor()};
                  if (needs[1]) gradients[1] = negated ? -gradients[0] : scaled() * target_derivative(loss, *x, *p);
                  if (!needs[0]) gradients[0] = Tensor();
                  return gradients;
                });
}

// The loss of each element times `weight`, then the reduction; `weight` may be undefined.
Tensor weighted(const char* op, const PointwiseLoss& loss, const Tensor& x, const Tensor& target,
                const Tensor& pos_weight, const Tensor& weight, Reduction reduction) {
  if (!weight.defined()) return pointwise(op, loss, x, target, pos_weight, reduction);
  LOCKSTEP_CHECK(weight.dtype() == x.dtype() && weight.device() == x.device() &&
                     broadcast_shapes(op, x.shape(), weight.shape()) == x.shape(),
                 "{}: weight is {}, which does not broadcast to x {}", op, describe(weight), describe(x));
  const Tensor losses = pointwise(op, loss, x, target, pos_weight, Reduction::kNone) * weight;
  return reduction == Reduction::kMean ? mean(losses) : reduction == Reduction::kSum ? sum(losses) : losses;
}

Tensor broadcasting(const char* op, const PointwiseLoss& loss, const Tensor& x, const Tensor& target,
                    Reduction reduction) {
  check_operands(op, x, target);
  if (x.shape() == target.shape()) [[likely]]
    return pointwise(op, loss, x, target, {}, reduction);
  const Shape shape = broadcast_shapes(op, x.shape(), target.shape());
  warn(op, fmt::format("{}: shapes differ: x is {}, target is {}; both broadcast to {}, which is rarely meant\n"
                       "Reshape one of them, for example target.unsqueeze(1)",
                       op, describe(x), describe(target), shape.to_string()));
  return pointwise(op, loss, x.expand(shape), target.expand(shape), {}, reduction);
}

// --- classification -----------------------------------------------------------------------------------------------------

// The shape of the losses of x (batch, classes, d1, ...): one for each sample.
Shape sample_shape(const Tensor& x) {
  Shape shape = x.shape();
  shape.erase(1);
  return shape;
}

void check_weight(const char* op, const Tensor& x, const Tensor& weight) {
  if (!weight.defined()) return;
  LOCKSTEP_CHECK(
      weight.dim() == 1 && weight.size(0) == x.size(1) && weight.dtype() == x.dtype() && weight.device() == x.device(),
      "{}: weight is {}, expected ({}) {} {}, one for each class of x {}", op, describe(weight), x.size(1),
      name(x.dtype()), x.device().to_string(), x.shape().to_string());
  LOCKSTEP_CHECK(!weight.requires_grad(), "{}: weight requires grad, but has no gradient here", op);
}

// The labels as i64, one for each sample of x (batch, classes, ...).
Tensor check_labels(const char* op, const Tensor& x, const Tensor& target) {
  LOCKSTEP_CHECK(target.dtype() == kInt64 || target.dtype() == kInt32, "{}: target is {}, expected classes, i64 or i32",
                 op, describe(target));
  LOCKSTEP_CHECK(target.shape() == sample_shape(x), "{}: x is {}, target is {}, expected {}", op, describe(x),
                 describe(target), sample_shape(x).to_string());
  LOCKSTEP_CHECK(target.device() == x.device(), "{}: devices differ: x is {}, target is {}", op, describe(x),
                 describe(target));
  return target.dtype() == kInt64 ? target : target.to(kInt64);
}

// d loss / d y for each sample: a constant, since the loss is linear in the log probabilities y.
Tensor nll_slopes(const Tensor& grad, const Shape& shape, const Tensor& labels, const Tensor& weight,
                  const raw::NllOptions& options, const raw::TotalWeight& total_weight) {
  return raw::nll_loss_backward(full(grad.shape(), 1.0, grad.options()), shape, labels, weight, options, total_weight);
}

// The gradient of the reduced loss, or of each sample's loss, shaped to broadcast to (batch, classes, ...).
Tensor per_class(const Tensor& grad, Reduction reduction) {
  return reduction == Reduction::kNone ? grad.unsqueeze(1) : grad;
}

// The negative log likelihood of the labels, given log probabilities y (batch, classes, ...).
Tensor nll(const char* op, const Tensor& y, const Tensor& target, const Tensor& weight,
           const raw::NllOptions& options) {
  const Tensor labels = check_labels(op, y, target);
  raw::TotalWeight total_weight;
  Tensor loss = raw::nll_loss(op, y, labels, weight, options, &total_weight);
  return record(op, std::move(loss), {y},
                [shape = y.shape(), labels = Saved(labels), weight = Saved(weight), options, total_weight](
                    const Tensor& grad, const Needs&) {
                  if (!autograd::grad_mode())
                    return Gradients{raw::nll_loss_backward(grad, shape, *labels, *weight, options, total_weight)};
                  return Gradients{per_class(grad, options.reduction) *
                                   nll_slopes(grad, shape, *labels, *weight, options, total_weight)};
                });
}

// The same, given logits x: log_softmax and nll combined.
Tensor hard_cross_entropy(const char* op, const Tensor& x, const Tensor& target, const Tensor& weight,
                          const raw::NllOptions& options) {
  const Tensor labels = check_labels(op, x, target);
  raw::CrossEntropyState state;
  Tensor loss = raw::cross_entropy(x, labels, weight, options, &state);
  return record(
      op, std::move(loss), {x},
      [x = Saved(x), labels = Saved(labels), weight = Saved(weight), options, state](const Tensor& grad, const Needs&) {
        if (!autograd::grad_mode())
          return Gradients{raw::cross_entropy_backward(grad, *x, *labels, *weight, options, state)};
        // With y = log_softmax(x) and constant s = d loss / d y: d loss / d x = s - softmax(x) sum_c s_c.
        const Tensor slopes = nll_slopes(grad, x->shape(), *labels, *weight, options, state.total_weight);
        return Gradients{per_class(grad, options.reduction) * (slopes - softmax(*x, 1) * sum(slopes, {1}, true))};
      });
}

// -sum_c weight_c target_c y_c for each sample, where target holds probabilities.
Tensor soft_nll(const Tensor& y, const Tensor& target, const CrossEntropyLossOptions& options) {
  const auto classes = static_cast<double>(y.size(1));
  Tensor terms =
      y * (options.label_smoothing > 0 ? target * (1 - options.label_smoothing) + options.label_smoothing / classes
                                       : target);
  if (options.weight.defined()) {
    Shape shape = y.shape();
    for (std::size_t dim = 0; dim < shape.size(); ++dim) shape[dim] = dim == 1 ? y.size(1) : 1;
    terms = terms * options.weight.view(shape);
  }
  const Tensor losses = -sum(terms, {1});
  if (options.reduction == Reduction::kNone) return losses;
  return options.reduction == Reduction::kMean ? mean(losses) : sum(losses);
}

void check_scores(const char* op, const Tensor& x) {
  LOCKSTEP_CHECK(computes(x.dtype()) && x.dim() >= 1, "{}: x is {}, expected f32 or f64 of shape (batch, classes, ...)",
                 op, describe(x));
}

// Runs `loss`, with a batch dimension of size 1 if x is (classes).
template <class F>
Tensor with_batch(const Tensor& x, const Tensor& target, F loss) {
  if (x.dim() > 1) [[likely]]
    return loss(x, target);
  const Tensor result = loss(x.unsqueeze(0), target.unsqueeze(0));
  return result.dim() == 1 ? result.squeeze(0) : result;
}

}  // namespace

Tensor binary_cross_entropy(const Tensor& x, const Tensor& target, const BCELossOptions& options) {
  if (widens_loss(x, target, options)) return computed_in_f32(binary_cross_entropy, x, target, options);
  check_operands("bce_loss", x, target);
  check_shapes("bce_loss", x, target);
  return weighted("bce_loss", PointwiseLoss::kBce, x, target, {}, options.weight, options.reduction);
}

Tensor binary_cross_entropy_with_logits(const Tensor& x, const Tensor& target,
                                        const BCEWithLogitsLossOptions& options) {
  if (widens_loss(x, target, options)) return computed_in_f32(binary_cross_entropy_with_logits, x, target, options);
  const char* op = "bce_with_logits_loss";
  check_operands(op, x, target);
  check_shapes(op, x, target);
  Tensor pos_weight = options.pos_weight;
  if (pos_weight.defined()) {
    LOCKSTEP_CHECK(!pos_weight.requires_grad(), "{}: pos_weight requires grad, but has no gradient here", op);
    LOCKSTEP_CHECK(pos_weight.dtype() == x.dtype() && pos_weight.device() == x.device() &&
                       broadcast_shapes(op, x.shape(), pos_weight.shape()) == x.shape(),
                   "{}: pos_weight is {}, which does not broadcast to x {}", op, describe(pos_weight), describe(x));
    pos_weight = pos_weight.expand(x.shape());
  }
  return weighted(op, PointwiseLoss::kBceWithLogits, x, target, pos_weight, options.weight, options.reduction);
}

Tensor mse_loss(const Tensor& x, const Tensor& target, const MSELossOptions& options) {
  if (widens_loss(x, target, options)) return computed_in_f32(mse_loss, x, target, options);
  return broadcasting("mse_loss", PointwiseLoss::kMse, x, target, options.reduction);
}

Tensor l1_loss(const Tensor& x, const Tensor& target, const L1LossOptions& options) {
  if (widens_loss(x, target, options)) return computed_in_f32(l1_loss, x, target, options);
  return broadcasting("l1_loss", PointwiseLoss::kL1, x, target, options.reduction);
}

Tensor huber_loss(const Tensor& x, const Tensor& target, const HuberLossOptions& options) {
  LOCKSTEP_CHECK(options.delta > 0, "huber_loss: delta is {}, expected a number above 0", options.delta);
  if (widens_loss(x, target, options)) return computed_in_f32(huber_loss, x, target, options);
  return broadcasting("huber_loss", {PointwiseLoss::kHuber, options.delta}, x, target, options.reduction);
}

Tensor smooth_l1_loss(const Tensor& x, const Tensor& target, const SmoothL1LossOptions& options) {
  LOCKSTEP_CHECK(options.beta >= 0, "smooth_l1_loss: beta is {}, expected 0 or more", options.beta);
  if (options.beta == 0) return l1_loss(x, target, {.reduction = options.reduction});
  if (widens_loss(x, target, options)) return computed_in_f32(smooth_l1_loss, x, target, options);
  const Tensor loss =
      broadcasting("smooth_l1_loss", {PointwiseLoss::kHuber, options.beta}, x, target, options.reduction);
  return options.beta == 1 ? loss : loss / options.beta;
}

Tensor cross_entropy(const Tensor& x, const Tensor& target, const CrossEntropyLossOptions& options) {
  require_defined("cross_entropy", x, "x", target, "target");
  if (widens_loss(x, target, options)) return computed_in_f32(cross_entropy, x, target, options);
  const char* op = "cross_entropy";
  check_scores(op, x);
  LOCKSTEP_CHECK(options.label_smoothing >= 0 && options.label_smoothing <= 1,
                 "{}: label_smoothing is {}, expected 0 to 1", op, options.label_smoothing);
  return with_batch(x, target, [&](const Tensor& scores, const Tensor& labels) {
    check_weight(op, scores, options.weight);
    if (!labels.is_floating_point())
      return hard_cross_entropy(op, scores, labels, options.weight,
                                {options.reduction, options.ignore_index, options.label_smoothing});
    check_operands(op, scores, labels);
    LOCKSTEP_CHECK(scores.shape() == labels.shape(),
                   "{}: x is {}, target is {}, expected probabilities of x's shape or i64 classes", op,
                   describe(scores), describe(labels));
    return soft_nll(log_softmax(scores, 1), labels, options);
  });
}

Tensor nll_loss(const Tensor& x, const Tensor& target, const NLLLossOptions& options) {
  require_defined("nll_loss", x, "x", target, "target");
  if (widens_loss(x, target, options)) return computed_in_f32(nll_loss, x, target, options);
  check_scores("nll_loss", x);
  return with_batch(x, target, [&](const Tensor& scores, const Tensor& labels) {
    check_weight("nll_loss", scores, options.weight);
    return nll("nll_loss", scores, labels, options.weight, {options.reduction, options.ignore_index, 0.0});
  });
}

}  // namespace lockstep::nn
