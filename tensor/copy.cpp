// Copies, fills and conversions.
#include <cstring>

#include "lockstep/tensor/wrappers_internal.h"

namespace lockstep::inline LOCKSTEP_ABI::raw {

void copy(const Tensor& from, const Tensor& to) {
  if (to.numel() == 0 && from.numel() <= 1) return;
  require_broadcast_to("copy_", from, to);
  // All CPU devices share one memory: a copy between them is a copy.
  if (from.dtype() == to.dtype() && from.is_contiguous() && to.is_contiguous() && from.shape() == to.shape()) {
    if (from.raw_data() != to.raw_data())
      std::memmove(to.raw_data(), from.raw_data(), static_cast<std::size_t>(to.numel()) * item_size(to.dtype()));
    return;
  }
  const Tensor source = apart(from, to);
  kernels(to.device()).cast(make_loop<2>(to.shape(), {&to, &source}), from.dtype(), to.dtype());
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
