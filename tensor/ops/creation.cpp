// Raw creation. The public functions, which honour requires_grad, are in autograd/ops/creation.cpp.
#include <algorithm>
#include <cmath>
#include <cstring>

#include "lockstep/tensor/ops/pieces_internal.h"
#include "lockstep/tensor/ops/wrappers_internal.h"

namespace lockstep::raw {

Tensor empty(const Shape& shape, const TensorOptions& options) {
  const DType dtype = options.dtype.value_or(kFloat32);
  const std::int64_t numel = checked_numel("empty", shape);
  auto storage =
      Storage::allocate(static_cast<std::size_t>(numel) * item_size(dtype), options.device.value_or(Device()));
  return Tensor(Ref<TensorImpl>::adopt(new TensorImpl(std::move(storage), shape, numel, dtype)));
}

Tensor empty_like(const Tensor& like) {
  const TensorImpl& impl = like.impl();
  // Elements without gaps lie in memory, so their number has been checked; that of an expanded tensor may overflow.
  const bool checked = impl.contiguous && impl.numel > 0;
  const std::int64_t numel = checked ? impl.numel : checked_numel("empty", impl.shape);
  auto storage = Storage::allocate(static_cast<std::size_t>(numel) * item_size(impl.dtype), like.device());
  return Tensor(Ref<TensorImpl>::adopt(new TensorImpl(std::move(storage), impl.shape, numel, impl.dtype)));
}

Tensor full(const Shape& shape, const Scalar& value, const TensorOptions& options) {
  Tensor out = empty(shape, {.dtype = options.dtype.value_or(value.dtype()), .device = options.device});
  fill(out, value, "full");
  return out;
}

Tensor zeros(const Shape& shape, const TensorOptions& options) {
  Tensor out = empty(shape, options);
  if (!out.device().is_cpu()) [[unlikely]] {
    fill(out, 0);
    return out;
  }
  auto* const bytes = static_cast<std::byte*>(out.raw_data());
  for_pieces(static_cast<std::size_t>(out.numel()) * item_size(out.dtype()),
             [=](std::size_t offset, std::size_t length) {
               if (length > 0) std::memset(bytes + offset, 0, length);
             });
  return out;
}

namespace {

// value(0), value(1), ..., computed in f64 or i64.
template <class F>
Tensor sequence(std::int64_t n, const TensorOptions& options, F value) {
  using Wide = decltype(value(n));
  const auto filled = [&]<class T>(T) {
    const Tensor out = empty({n}, {.dtype = dtype_of<T>});
    T* const elements = out.data<T>();
    for_pieces(static_cast<std::size_t>(n) * sizeof(T), [=](std::size_t offset, std::size_t length) {
      const auto begin = static_cast<std::int64_t>(offset / sizeof(T));
      const auto end = static_cast<std::int64_t>((offset + length) / sizeof(T));
      const F element = value;  // a copy that no store can change
      for (std::int64_t i = begin; i < end; ++i) elements[i] = static_cast<T>(element(i));
    });
    return out;
  };
  const bool is_float = options.dtype == kFloat32 && std::is_same_v<Wide, double>;
  return to(to(is_float ? filled(float{}) : filled(Wide{}), *options.dtype), options.device.value_or(Device()));
}

}  // namespace

Tensor arange(const Scalar& start, const Scalar& end, const Scalar& step, const TensorOptions& options) {
  const bool integers = !start.is_floating_point() && !end.is_floating_point() && !step.is_floating_point();
  const double first = start.to_double(), last = end.to_double(), stride = step.to_double();
  LOCKSTEP_CHECK(stride != 0, "arange: the step is 0");
  LOCKSTEP_CHECK(std::isfinite(first) && std::isfinite(last) && std::isfinite(stride) && (last - first) / stride >= 0,
                 "arange: step {} has the wrong sign for {} to {}", stride, first, last);
  const double count = std::ceil((last - first) / stride);
  LOCKSTEP_CHECK(count < 0x1p53, "arange: {} elements are too many", count);
  auto n = static_cast<std::int64_t>(count);
  if (integers) {  // doubles are not exact beyond 2^53
    const std::int64_t span = end.to_int64() - start.to_int64(), by = step.to_int64();
    n = span / by + (span % by != 0);
  }
  const DType dtype = options.dtype.value_or(integers ? kInt64 : kFloat32);
  const bool truncated = !is_floating_point(dtype);  // PyTorch's rule: start and step are converted first
  if (truncated) {
    require_fits("arange", start, kInt64);
    require_fits("arange", step, kInt64);
  }
  const TensorOptions made = {.dtype = dtype, .device = options.device};
  if (!truncated) return sequence(n, made, [=](std::int64_t i) { return first + static_cast<double>(i) * stride; });
  return sequence(n, made, [from = start.to_int64(), by = step.to_int64()](std::int64_t i) { return from + i * by; });
}

Tensor linspace(double start, double end, std::int64_t steps, const TensorOptions& options) {
  LOCKSTEP_CHECK(steps >= 0, "linspace: the number of steps must be at least 0, got {}", steps);
  const DType dtype = options.dtype.value_or(kFloat32);
  if (!is_floating_point(dtype)) {  // PyTorch's rule: the ends are converted first
    require_fits("linspace", start, dtype);
    require_fits("linspace", end, dtype);
    start = std::trunc(start), end = std::trunc(end);
  }
  const double width = steps > 1 ? (end - start) / static_cast<double>(steps - 1) : 0;
  // Computed from both ends, so that the last element is exactly `end`.
  return sequence(steps, {.dtype = dtype, .device = options.device}, [=](std::int64_t i) {
    const bool is_first_half = i < (steps + 1) / 2;
    return is_first_half ? start + width * static_cast<double>(i) : end - width * static_cast<double>(steps - 1 - i);
  });
}

Tensor eye(std::int64_t n, std::int64_t m, const TensorOptions& options) {
  Tensor out = zeros({n, m}, options);
  fill(as_strided(out, {std::min(n, m)}, {m + 1}, 0), 1);
  return out;
}

Tensor from_bytes(const void* data, const Shape& shape, DType dtype, const TensorOptions& options) {
  Tensor host = empty(shape, {.dtype = dtype});
  if (host.numel() > 0) std::memcpy(host.raw_data(), data, static_cast<std::size_t>(host.numel()) * item_size(dtype));
  return to(to(host, options.dtype.value_or(dtype)), options.device.value_or(Device()));
}

Tensor wrap_memory(void* data, const Shape& shape, DType dtype, Device device, std::shared_ptr<void> owner) {
  const std::int64_t numel = checked_numel("from_memory", shape);
  auto storage = Storage::wrap(data, static_cast<std::size_t>(numel) * item_size(dtype), device, std::move(owner));
  return Tensor(Ref<TensorImpl>::adopt(new TensorImpl(std::move(storage), shape, numel, dtype)));
}

}  // namespace lockstep::raw
