#include "lockstep/autograd/ops/creation.h"

#include <optional>

#include "lockstep/autograd/ops/functions.h"
#include "lockstep/base/check_internal.h"
#include "lockstep/tensor/ops/ops_internal.h"
#include "lockstep/tensor/random/random_ops_internal.h"
#include "lockstep/tensor/random/slice_context_internal.h"

namespace lockstep {

namespace {

// The tensor that `make` returns, as a leaf that requires grad if the options say so. Errors name `op`.
template <class F>
Tensor create(const char* op, const TensorOptions& options, F make) {
  return named(op, [&] {
    Tensor out = make();
    if (options.requires_grad) out.requires_grad_();
    return out;
  });
}

// `options`, with unset fields taken from `like`.
TensorOptions like_options(const Tensor& like, const TensorOptions& options) {
  return {.dtype = options.dtype.value_or(like.dtype()),
          .device = options.device.value_or(like.device()),
          .requires_grad = options.requires_grad};
}

// Throws InvalidArgument unless the dtype holds all integers in [low, high). Unlike fill_, u8 does not wrap around.
void require_range(const char* op, std::int64_t low, std::int64_t high, DType dtype) {
  if (low >= high) return;  // nothing to hold; randint refuses it
  const bool is_unsigned = dtype == kBool || dtype == kUInt8;
  LOCKSTEP_CHECK(!is_unsigned || (low >= 0 && high - 1 <= (dtype == kBool ? 1 : 255)),
                 "{}: [{}, {}) is outside the range of {}; use a wider dtype", op, low, high, name(dtype));
  raw::require_fits(op, low, dtype);
  raw::require_fits(op, high - 1, dtype);
}

// The result of `draw` for a shape. Where tensor parallelism has cut activations, this rank's part of that for the whole.
template <class Draw>
Tensor drawn(const char* op, const Shape& shape, const Draw& draw) {
  const random::SliceContext* const context = random::slice_context();
  if (!context) return draw(shape);
  random::refuse_in_slice(op);
  const std::optional<random::Share> share = context->share_of(shape);
  LOCKSTEP_CHECK(
      share,
      "{}: shape {}, after {}, whose outputs tensor parallelism has cut; expected the {} columns of this rank in "
      "the last dimension: draw whole tensors before the layer or after the next RowwiseParallel one",
      op, shape.to_string(), context->opened_by, context->columns.back().run * context->columns.back().parts);
  const auto [run, ranks, rank] = *share;
  if (run == 0 || ranks == 1) return draw(shape);
  const Tensor whole = draw(Shape{shape.numel() / run, run * ranks});
  const Tensor own = raw::empty(shape, whole.options());
  raw::copy(raw::reshape(raw::slice(whole, 1, run * rank, run * (rank + 1), 1), shape), own);
  return own;
}

}  // namespace

Tensor empty(const Shape& shape, const TensorOptions& options) {
  return create("empty", options, [&] { return raw::empty(shape, options); });
}
Tensor zeros(const Shape& shape, const TensorOptions& options) {
  return create("zeros", options, [&] { return raw::zeros(shape, options); });
}
Tensor ones(const Shape& shape, const TensorOptions& options) {
  return create("ones", options, [&] {
    return raw::full(shape, 1, {.dtype = options.dtype.value_or(kFloat32), .device = options.device});
  });
}
Tensor full(const Shape& shape, const Scalar& value, const TensorOptions& options) {
  return create("full", options, [&] { return raw::full(shape, value, options); });
}

Tensor zeros_like(const Tensor& like, const TensorOptions& options) {
  return named("zeros_like", [&] { return zeros(like.shape(), like_options(like, options)); });
}
Tensor ones_like(const Tensor& like, const TensorOptions& options) {
  return named("ones_like", [&] { return ones(like.shape(), like_options(like, options)); });
}
Tensor empty_like(const Tensor& like, const TensorOptions& options) {
  return named("empty_like", [&] { return empty(like.shape(), like_options(like, options)); });
}
Tensor full_like(const Tensor& like, const Scalar& value, const TensorOptions& options) {
  return named("full_like", [&] { return full(like.shape(), value, like_options(like, options)); });
}

Tensor arange(const Scalar& end, const TensorOptions& options) { return arange(0, end, 1, options); }
Tensor arange(const Scalar& start, const Scalar& end, const Scalar& step, const TensorOptions& options) {
  return create("arange", options, [&] { return raw::arange(start, end, step, options); });
}
Tensor linspace(double start, double end, std::int64_t steps, const TensorOptions& options) {
  return create("linspace", options, [&] { return raw::linspace(start, end, steps, options); });
}
Tensor eye(std::int64_t n, const TensorOptions& options) { return eye(n, n, options); }
Tensor eye(std::int64_t n, std::int64_t m, const TensorOptions& options) {
  return create("eye", options, [&] { return raw::eye(n, m, options); });
}

Tensor rand(const Shape& shape, const TensorOptions& options) {
  return create("rand", options, [&] {
    return drawn("rand", shape, [&](const Shape& whole) { return raw::uniform(whole, 0, 1, options); });
  });
}
Tensor randn(const Shape& shape, const TensorOptions& options) {
  return create("randn", options,
                [&] { return drawn("randn", shape, [&](const Shape& whole) { return raw::normal(whole, options); }); });
}
Tensor rand_like(const Tensor& like, const TensorOptions& options) {
  return named("rand_like", [&] { return rand(like.shape(), like_options(like, options)); });
}
Tensor randn_like(const Tensor& like, const TensorOptions& options) {
  return named("randn_like", [&] { return randn(like.shape(), like_options(like, options)); });
}

const Tensor& Tensor::uniform_(double from, double to) const {
  LOCKSTEP_CHECK(from <= to, "uniform_: from is {}, to is {}; from must not be above to", from, to);
  return copy_(named("uniform_", [&] { return rand_like(*this).mul_(to - from).add_(from); }));
}
const Tensor& Tensor::normal_(double mean, double std) const {
  return copy_(named("normal_", [&] { return lockstep::normal(mean, std, shape(), options()); }));
}

Tensor normal(double mean, double std, const Shape& shape, const TensorOptions& options) {
  LOCKSTEP_CHECK(std >= 0, "normal: the standard deviation is {}; it must not be negative", std);
  const NoGradGuard no_grad;
  return create("normal", options,
                [&] { return randn(shape, {.dtype = options.dtype, .device = options.device}) * std + mean; });
}
Tensor normal(const Tensor& mean, double std) {
  LOCKSTEP_CHECK(std >= 0, "normal: the standard deviation is {}; it must not be negative", std);
  const NoGradGuard no_grad;
  return named("normal", [&] { return randn_like(mean) * std + mean; });
}
Tensor normal(double mean, const Tensor& std) {
  const NoGradGuard no_grad;
  return named("normal", [&] { return randn_like(std) * std + mean; });
}
Tensor normal(const Tensor& mean, const Tensor& std) {
  const NoGradGuard no_grad;
  return named("normal", [&] {
    return randn(broadcast_shapes("normal", mean.shape(), std.shape()), mean.options()) * std + mean;
  });
}

Tensor bernoulli(const Tensor& probabilities) {
  LOCKSTEP_CHECK(probabilities.is_floating_point(), "bernoulli: the probabilities must be floating point, got {}",
                 describe(probabilities));
  const NoGradGuard no_grad;
  return named("bernoulli", [&] {
    if (probabilities.device().is_cpu())
      LOCKSTEP_CHECK(all((probabilities >= 0) & (probabilities <= 1)).item<bool>(),
                     "bernoulli: a probability of {} is outside [0, 1]", describe(probabilities));
    const bool wide = probabilities.dtype() == kFloat64;
    return (rand_like(probabilities, {.dtype = wide ? kFloat64 : kFloat32}) < probabilities).to(probabilities.dtype());
  });
}
Tensor bernoulli(const Tensor& like, double p) {
  LOCKSTEP_CHECK(p >= 0 && p <= 1, "bernoulli: probability {} is outside [0, 1]", p);
  return named("bernoulli", [&] { return (rand_like(like, {.dtype = kFloat32}) < p).to(like.dtype()); });
}

Tensor randint(std::int64_t low, std::int64_t high, const Shape& shape, const TensorOptions& options) {
  return create("randint", options, [&] {
    require_range("randint", low, high, options.dtype.value_or(kInt64));
    return drawn("randint", shape, [&](const Shape& whole) { return raw::randint(low, high, whole, options); });
  });
}
Tensor randint(std::int64_t high, const Shape& shape, const TensorOptions& options) {
  return randint(0, high, shape, options);
}
Tensor randperm(std::int64_t n, const TensorOptions& options) {
  return create("randperm", options, [&] {
    require_range("randperm", 0, n, options.dtype.value_or(kInt64));
    random::refuse_in_slice("randperm");
    return raw::randperm(n, options);
  });
}
Tensor multinomial(const Tensor& weights, std::int64_t num_samples, bool replacement) {
  random::refuse_in_slice("multinomial");
  return raw::multinomial(weights, num_samples, replacement);
}

namespace detail {
Tensor from_values(const void* values, const Shape& shape, DType dtype, const TensorOptions& options) {
  return create("tensor", options, [&] { return raw::from_bytes(values, shape, dtype, options); });
}

void require_fits(const Scalar& literal, DType dtype) { raw::require_fits("tensor", literal, dtype); }
}  // namespace detail

Tensor from_memory(void* data, const Shape& shape, DType dtype, std::size_t bytes) {
  const std::int64_t numel = checked_numel("from_memory", shape);
  LOCKSTEP_CHECK(bytes >= static_cast<std::size_t>(numel) * item_size(dtype),
                 "from_memory: shape {} {} needs {} bytes, the memory has {}", shape.to_string(), name(dtype),
                 static_cast<std::size_t>(numel) * item_size(dtype), bytes);
  return raw::wrap_memory(data, shape, dtype);
}

}  // namespace lockstep
