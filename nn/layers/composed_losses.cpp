// The losses that are compositions of operations.
#include <utility>

#include "lockstep/autograd/ops/autocast_internal.h"
#include "lockstep/autograd/ops/functions.h"
#include "lockstep/base/check_internal.h"
#include "lockstep/base/warning.h"
#include "lockstep/nn/layers/losses.h"
#include "lockstep/tensor/ops/ops_internal.h"

namespace lockstep::nn {
namespace {

// The loss of operands of `dtype`. The losses of the samples are f32 if `dtype` is f16 or bf16.
Tensor reduced(Tensor losses, Reduction reduction, DType dtype) {
  if (reduction == Reduction::kMean) losses = mean(losses);
  if (reduction == Reduction::kSum) losses = sum(losses);
  return rounded_result(losses, dtype);
}

// Throws unless all operands are floating point, of one dtype and device.
void check_operands_of(const char* op, const Tensor& a, const Tensor& b) {
  require_defined(op, a);
  require_defined(op, b);
  LOCKSTEP_CHECK(
      a.is_floating_point() && a.dtype() == b.dtype() && a.device() == b.device(),
      "{}: operands are {} and {}, expected floating point of one dtype and device\nconvert one with .to(...)", op,
      describe(a), describe(b));
}

void warn_if_shapes_differ(const char* op, const Tensor& x, const Tensor& target) {
  if (x.shape() != target.shape())
    warn(op, fmt::format("{}: shapes differ: x is {}, target is {}, and broadcast, which is rarely meant\n"
                         "Reshape one of them, for example target.unsqueeze(1)",
                         op, describe(x), describe(target)));
}

}  // namespace

Tensor kl_div(const Tensor& x, const Tensor& target, const KLDivLossOptions& options) {
  check_operands_of("kl_div", x, target);
  warn_if_shapes_differ("kl_div", x, target);
  const Tensor input = in_f32(x), y = in_f32(target);
  const Tensor losses = options.log_target ? exp(y) * (y - input) : y * (log(where(y == 0, 1.0, y)) - input);
  Tensor result = losses;
  if (options.reduction == KLDivReduction::kMean) result = mean(losses);
  if (options.reduction == KLDivReduction::kSum) result = sum(losses);
  if (options.reduction == KLDivReduction::kBatchMean) {
    LOCKSTEP_CHECK(x.dim() >= 1, "kl_div: kBatchMean divides by the size of dimension 0, but x is {}", describe(x));
    result = sum(losses) / static_cast<double>(x.size(0));
  }
  return rounded_result(result, x.dtype());
}

Tensor triplet_margin_loss(const Tensor& anchor, const Tensor& positive, const Tensor& negative,
                           const TripletMarginLossOptions& options) {
  const char* op = "triplet_margin_loss";
  check_operands_of(op, anchor, positive);
  check_operands_of(op, anchor, negative);
  LOCKSTEP_CHECK(options.margin > 0, "{}: margin is {}, expected a number above 0", op, options.margin);
  LOCKSTEP_CHECK(anchor.dim() >= 1 && anchor.dim() == positive.dim() && anchor.dim() == negative.dim(),
                 "{}: anchor is {}, positive {}, negative {}; expected equal numbers of dimensions", op,
                 describe(anchor), describe(positive), describe(negative));
  const auto distance = [&](const Tensor& a, const Tensor& b) {
    return norm(in_f32(a) - in_f32(b) + options.eps, options.p, {-1});
  };
  Tensor away = distance(anchor, negative);
  if (options.swap) away = minimum(away, distance(positive, negative));
  const Tensor losses = relu(distance(anchor, positive) - away + options.margin);
  return reduced(losses, options.reduction, anchor.dtype());
}

Tensor cosine_embedding_loss(const Tensor& a, const Tensor& b, const Tensor& target,
                             const CosineEmbeddingLossOptions& options) {
  const char* op = "cosine_embedding_loss";
  check_operands_of(op, a, b);
  LOCKSTEP_CHECK(a.shape() == b.shape() && target.dim() + 1 == a.dim() && (a.dim() == 1 || a.size(0) == target.size(0)),
                 "{}: a is {}, b {}, target {}; expected (batch, features) twice and (batch)", op, describe(a),
                 describe(b), describe(target));
  const Tensor x = in_f32(a), y = in_f32(b);
  constexpr double kEps = 1e-12;
  const Tensor sizes = (sum(x * x, {-1}) + kEps) * (sum(y * y, {-1}) + kEps), cosine = sum(x * y, {-1}) * rsqrt(sizes);
  const Tensor losses = where(target == 1, 1 - cosine, 0.0) + where(target == -1, relu(cosine - options.margin), 0.0);
  return reduced(losses, options.reduction, a.dtype());
}

}  // namespace lockstep::nn
