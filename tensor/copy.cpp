// Copies, fills and conversions.
#include <cstring>

#include "lockstep/tensor/accelerator_internal.h"
#include "lockstep/tensor/capture_internal.h"
#include "lockstep/tensor/wrappers_internal.h"

namespace lockstep::inline LOCKSTEP_ABI::raw {

namespace {

void convert(const Tensor& from, const Tensor& to) {
  const Tensor source = apart(from, to);
  kernels(to.device()).cast(make_loop<2>(to.shape(), {&to, &source}), from.dtype(), to.dtype());
}

// Where a device that is not a CPU's takes part: bytes cross between devices, conversions are made on one.
void copy_elsewhere(const Tensor& from, const Tensor& to) {
  const bool same_bytes =
      from.dtype() == to.dtype() && from.is_contiguous() && to.is_contiguous() && from.shape() == to.shape();
  if (same_bytes) {
    if (from.raw_data() == to.raw_data()) return;
    const Device device = to.device().is_cpu() ? from.device() : to.device();
    if (from.device() != to.device()) {
      capture::forbid("a copy between devices", from.device());
      capture::forbid("a copy between devices", to.device());
    }
    return accelerator(device).copy(to.raw_data(), to.device(), from.raw_data(), from.device(),
                                    static_cast<std::size_t>(to.numel()) * item_size(to.dtype()));
  }
  if (from.device() == to.device()) return convert(from, to);
  const Tensor dense = contiguous(from);
  Tensor there = empty(dense.shape(), {.dtype = dense.dtype(), .device = to.device()});
  copy_elsewhere(dense, there);
  copy(there, to);
}

}  // namespace

void copy(const Tensor& from, const Tensor& to) {
  if (to.numel() == 0 && from.numel() <= 1) return;
  require_broadcast_to("copy_", from, to);
  if (!from.device().is_cpu() || !to.device().is_cpu()) [[unlikely]]
    return copy_elsewhere(from, to);
  // All CPU devices share one memory: a copy between them is a copy.
  if (from.dtype() == to.dtype() && from.is_contiguous() && to.is_contiguous() && from.shape() == to.shape()) {
    if (from.raw_data() != to.raw_data())
      std::memmove(to.raw_data(), from.raw_data(), static_cast<std::size_t>(to.numel()) * item_size(to.dtype()));
    return;
  }
  convert(from, to);
}

void fill(const Tensor& x, const Scalar& value) {
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

}  // namespace lockstep::inline LOCKSTEP_ABI::raw
