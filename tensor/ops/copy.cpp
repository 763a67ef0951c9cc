// Copies, fills and conversions.
#include <cmath>
#include <cstring>
#include <limits>

#include "lockstep/tensor/memory/accelerator_internal.h"
#include "lockstep/tensor/memory/capture_internal.h"
#include "lockstep/tensor/ops/pieces_internal.h"
#include "lockstep/tensor/ops/wrappers_internal.h"

namespace lockstep::raw {

namespace {

// Copies all elements of `from` to `to`, both contiguous and of one dtype and shape.
void copy_bytes(const Tensor& from, const Tensor& to) {
  const void* const source = from.raw_data();
  void* const target = to.raw_data();
  if (source == target) return;
  const auto bytes = static_cast<std::size_t>(to.numel()) * item_size(to.dtype());
  if (from.device().is_cpu() && to.device().is_cpu()) {
    auto* const out = static_cast<std::byte*>(target);
    const auto* const in = static_cast<const std::byte*>(source);
    if (out < in + bytes && in < out + bytes) {
      std::memmove(out, in, bytes);
    } else {
      for_pieces(bytes,
                 [=](std::size_t offset, std::size_t length) { std::memcpy(out + offset, in + offset, length); });
    }
    return;
  }
  if (from.device() != to.device()) {
    capture::forbid("a copy between devices", from.device());
    capture::forbid("a copy between devices", to.device());
  }
  accelerator(to.device().is_cpu() ? from.device() : to.device())
      .copy(target, to.device(), source, from.device(), bytes);
}

}  // namespace

void copy(const Tensor& from, const Tensor& to) {
  if (to.numel() == 0 && from.numel() <= 1) return;
  if (from.device().type() == DeviceType::kDeferred || to.device().type() == DeviceType::kDeferred) throw_deferred();
  require_broadcast_to("copy_", from, to);
  if (from.dtype() == to.dtype() && from.is_contiguous() && to.is_contiguous() && from.shape() == to.shape())
    return copy_bytes(from, to);
  // All CPU devices share one memory.
  if (from.device() == to.device() || (from.device().is_cpu() && to.device().is_cpu())) {
    const Tensor source = apart(from.dtype() == to.dtype() ? from : in_row_order(from), to);
    return kernels(to.device()).cast(make_loop<2>(to.shape(), {&to, &source}), from.dtype(), to.dtype());
  }
  // Between devices only bytes are copied: elements are made contiguous on one device and converted on the other.
  const Tensor dense = contiguous(from);
  Tensor there = empty(dense.shape(), {.dtype = dense.dtype(), .device = to.device()});
  copy_bytes(dense, there);
  copy(there, to);
}

namespace {

double largest(DType dtype) {
  switch (dtype) {
    case kFloat16:
      return 65504;
    case kBFloat16:
      return 0x1.fep127;
    case kFloat32:
      return std::numeric_limits<float>::max();
    default:
      return std::numeric_limits<double>::max();
  }
}

// PyTorch's rule: fractions are truncated, and u8 takes the integers from -255 to -1 modulo 256.
bool fits(const Scalar& number, DType dtype) {
  const double value = number.to_double();
  if (dtype == kBool) return true;
  if (is_floating_point(dtype)) return !std::isfinite(value) || std::abs(value) <= largest(dtype);
  if (number.is_floating_point() && !(value >= -0x1p63 && value < 0x1p63)) return false;
  if (number.is_floating_point() && dtype == kUInt8) return value >= 0 && value <= 255;
  const std::int64_t integer = number.to_int64();
  if (dtype == kUInt8) return integer >= -255 && integer <= 255;
  return dtype == kInt64 ||
         (integer >= std::numeric_limits<std::int32_t>::min() && integer <= std::numeric_limits<std::int32_t>::max());
}

}  // namespace

void require_fits(const char* op, const Scalar& number, DType dtype) {
  LOCKSTEP_CHECK(fits(number, dtype), "{}: {} is outside the range of {}; use a wider dtype", op,
                 number.is_floating_point() ? fmt::to_string(number.to_double()) : fmt::to_string(number.to_int64()),
                 name(dtype));
}

void fill(const Tensor& x, const Scalar& value, const char* op) {
  require_fits(op, value, x.dtype());
  if (x.numel() > 0) kernels(x.device()).fill(make_loop<1>(x.shape(), {&x}), x.dtype(), value);
}

Tensor to(const Tensor& x, DType dtype) {
  if (x.dtype() == dtype) return x;
  Tensor out = empty(x.shape(), {.dtype = dtype, .device = x.device()});
  copy(x, out);
  return out;
}

Tensor to(const Tensor& x, Device device) {
  if (x.device() == device) return x;
  capture::forbid("to", x.device());
  capture::forbid("to", device);
  Tensor out = empty(x.shape(), {.dtype = x.dtype(), .device = device});
  copy(x, out);
  return out;
}

Tensor contiguous(const Tensor& x) { return x.is_contiguous() ? x : clone(x); }

Tensor clone(const Tensor& x) {
  Tensor out = empty_like(x);
  copy(x, out);
  return out;
}

}  // namespace lockstep::raw
