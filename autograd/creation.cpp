#include "lockstep/autograd/creation.h"

#include "lockstep/tensor/check_internal.h"
#include "lockstep/tensor/ops_internal.h"
#include "lockstep/tensor/random_ops_internal.h"

namespace lockstep {

namespace {
Tensor finish(Tensor out, const TensorOptions& options) {
  if (options.requires_grad) out.requires_grad_();
  return out;
}

// `options`, with unset fields taken from `like`.
TensorOptions like_options(const Tensor& like, const TensorOptions& options) {
  return {.dtype = options.dtype.value_or(like.dtype()),
          .device = options.device.value_or(like.device()),
          .requires_grad = options.requires_grad};
}
}  // namespace

Tensor empty(const Shape& shape, const TensorOptions& options) { return finish(raw::empty(shape, options), options); }
Tensor zeros(const Shape& shape, const TensorOptions& options) { return finish(raw::zeros(shape, options), options); }
Tensor ones(const Shape& shape, const TensorOptions& options) {
  return finish(raw::full(shape, 1, {.dtype = options.dtype.value_or(kFloat32), .device = options.device}), options);
}
Tensor full(const Shape& shape, const Scalar& value, const TensorOptions& options) {
  return finish(raw::full(shape, value, options), options);
}

Tensor zeros_like(const Tensor& like, const TensorOptions& options) {
  return zeros(like.shape(), like_options(like, options));
}
Tensor ones_like(const Tensor& like, const TensorOptions& options) {
  return ones(like.shape(), like_options(like, options));
}

Tensor arange(const Scalar& end, const TensorOptions& options) { return arange(0, end, 1, options); }
Tensor arange(const Scalar& start, const Scalar& end, const Scalar& step, const TensorOptions& options) {
  return finish(raw::arange(start, end, step, options), options);
}
Tensor linspace(double start, double end, std::int64_t steps, const TensorOptions& options) {
  return finish(raw::linspace(start, end, steps, options), options);
}
Tensor eye(std::int64_t n, const TensorOptions& options) { return finish(raw::eye(n, options), options); }

Tensor rand(const Shape& shape, const TensorOptions& options) {
  return finish(raw::uniform(shape, 0, 1, random::Stream::kUser, options), options);
}
Tensor randn(const Shape& shape, const TensorOptions& options) {
  return finish(raw::normal(shape, random::Stream::kUser, options), options);
}
Tensor randint(std::int64_t low, std::int64_t high, const Shape& shape, const TensorOptions& options) {
  return finish(raw::randint(low, high, shape, options), options);
}
Tensor randperm(std::int64_t n, const TensorOptions& options) { return finish(raw::randperm(n, options), options); }

namespace detail {
Tensor from_values(const void* values, const Shape& shape, DType dtype, const TensorOptions& options) {
  return finish(raw::from_bytes(values, shape, dtype, options), options);
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
