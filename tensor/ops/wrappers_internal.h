// Shared by the raw wrappers: operand checks, loops over broadcast operands, rows along a dimension.
#pragma once

#include <array>

#include "lockstep/base/check_internal.h"
#include "lockstep/tensor/half_dtypes_internal.h"
#include "lockstep/tensor/kernels/kernels_internal.h"
#include "lockstep/tensor/memory/accelerator_internal.h"
#include "lockstep/tensor/ops/ops_internal.h"

namespace lockstep::raw {

inline std::size_t at(int dim) { return static_cast<std::size_t>(dim); }
// The address of an optional operand's elements.
inline void* data_or_null(const Tensor& x) { return x.defined() ? x.raw_data() : nullptr; }

// Separate functions, so that the checks are small enough to be inlined.
[[noreturn, gnu::noinline]] inline void throw_devices_differ(const char* op, const Tensor& a, const Tensor& b) {
  if (a.device().type() == DeviceType::kDeferred || b.device().type() == DeviceType::kDeferred) throw_deferred();
  throw InvalidArgument(fmt::format("{}: operands on different devices: {} and {}; move one with to(device)", op,
                                    describe(a), describe(b)));
}
[[noreturn, gnu::noinline]] inline void throw_dtypes_differ(const char* op, const Tensor& a, const Tensor& b) {
  throw InvalidArgument(fmt::format("{}: operands of different dtypes: {} and {}; convert one with to(dtype)", op,
                                    describe(a), describe(b)));
}

// Throws InvalidArgument unless both tensors live on one device.
inline void require_same_device(const char* op, const Tensor& a, const Tensor& b) {
  if (a.device() != b.device()) [[unlikely]]
    throw_devices_differ(op, a, b);
}

// Throws InvalidArgument unless both tensors have one dtype and live on one device.
inline void require_same(const char* op, const Tensor& a, const Tensor& b) {
  require_same_device(op, a, b);
  if (a.dtype() != b.dtype()) [[unlikely]]
    throw_dtypes_differ(op, a, b);
}

// x as f32 if it is f16 or bf16: most operations have no kernels for these. Undefined tensors stay undefined.
inline Tensor widened(const Tensor& x) { return x.defined() && is_half(x.dtype()) ? to(x, kFloat32) : x; }

// Throws InvalidArgument unless x is f32 or f64.
inline void require_float(const char* op, const Tensor& x) {
  LOCKSTEP_CHECK(x.dtype() == kFloat32 || x.dtype() == kFloat64, "{}: needs f32 or f64, got {}", op, describe(x));
}

// The tensor itself if it is contiguous or undefined (or a kernel can read it as it is), otherwise a contiguous copy.
// Takes no reference to the tensor.
class Dense {
 public:
  explicit Dense(const Tensor& x) : Dense(x, !x.defined() || x.is_contiguous()) {}
  Dense(const Tensor& x, bool as_it_is) : copy_(as_it_is ? Tensor() : clone(x)), tensor_(as_it_is ? x : copy_) {}
  Dense(const Dense&) = delete;
  Dense& operator=(const Dense&) = delete;
  const Tensor& operator*() const { return tensor_; }
  const Tensor* operator->() const { return &tensor_; }
  void* data() const { return data_or_null(tensor_); }

 private:
  Tensor copy_;
  const Tensor& tensor_;
};

// The shape to which a and b broadcast; throws InvalidArgument if there is none.
inline Shape broadcast(const char* op, const Tensor& a, const Tensor& b) {
  Shape out;
  LOCKSTEP_CHECK(try_broadcast(a.shape(), b.shape(), &out), "{}: shapes do not broadcast: {} and {}", op, describe(a),
                 describe(b));
  return out;
}

// Throws InvalidArgument unless `from` broadcasts to the shape of `to`.
inline void require_broadcast_to(const char* op, const Tensor& from, const Tensor& to) {
  Shape out;
  LOCKSTEP_CHECK(try_broadcast(from.shape(), to.shape(), &out) && out == to.shape(), "{}: {} does not broadcast to {}",
                 op, describe(from), describe(to));
}

// Returns `read`, or a copy if it shares memory with `written` in another arrangement (a shifted or transposed view):
// then writing one element would change another that is still to be read.
inline Tensor apart(const Tensor& read, const Tensor& written) {
  const TensorImpl &from = read.impl(), &to = written.impl();
  if (from.storage != to.storage) return read;
  if (from.offset == to.offset && from.shape == to.shape && from.strides == to.strides) return read;
  return overlap(read, written) ? clone(read) : read;
}

// Sets shape and strides of a loop nest; adjacent dimensions are merged where possible. stride_of(k, d) is the stride of
// operand k in dimension d of the shape.
template <int N, class F>
void set_dims(Loop<N>& loop, const Shape& shape, F stride_of) {
  loop.numel = shape.numel();
  for (int d = 0; d < shape.dim(); ++d) {
    const std::int64_t size = shape[at(d)];
    if (size == 1) continue;
    std::int64_t strides[N];
    bool merge = loop.dims > 0;
    for (int k = 0; k < N; ++k) {
      strides[k] = stride_of(k, d);
      merge = merge && loop.strides[k][loop.dims - 1] == strides[k] * size;
    }
    const int to = merge ? loop.dims - 1 : loop.dims++;
    loop.shape[to] = merge ? loop.shape[to] * size : size;
    for (int k = 0; k < N; ++k) loop.strides[k][to] = strides[k];
  }
  if (loop.dims > 0) return;
  loop.dims = 1;
  loop.shape[0] = 1;
  for (int k = 0; k < N; ++k) loop.strides[k][0] = 1;
}

// The stride of x in dimension d of a shape with `dims` dimensions, to which x broadcasts.
inline std::int64_t broadcast_stride(const TensorImpl& x, int d, int dims) {
  const int own = d - (dims - x.shape.dim());
  return own < 0 || x.shape[at(own)] == 1 ? 0 : x.strides[at(own)];
}

// The loop nest over `operands` (the output first), all broadcast to `shape`.
template <int N>
Loop<N> make_loop(const Shape& shape, const std::array<const Tensor*, N>& operands) {
  Loop<N> loop;
  bool simple = true;
  for (int k = 0; k < N; ++k) {
    const TensorImpl& impl = operands[static_cast<std::size_t>(k)]->impl();
    loop.data[k] = impl.data();
    simple = simple && impl.contiguous && (&impl.shape == &shape || impl.shape == shape);
  }
  if (simple) {
    loop.dims = 1;
    loop.numel = loop.shape[0] = operands[0]->numel();
    for (int k = 0; k < N; ++k) loop.strides[k][0] = 1;
    return loop;
  }
  set_dims(loop, shape, [&](int k, int d) {
    return broadcast_stride(operands[static_cast<std::size_t>(k)]->impl(), d, shape.dim());
  });
  return loop;
}

// x, or a contiguous copy of it if x is a large transposed tensor on a CPU: the copy reads and writes whole cache lines
// (copies_internal.h), which a loop along the rows of the result does not.
inline Tensor in_row_order(const Tensor& x) {
  constexpr std::int64_t kFrom = 1 << 14, kSide = 32;
  const TensorImpl& impl = x.impl();
  if (impl.contiguous || impl.numel < kFrom || impl.shape.dim() < 2 || !x.device().is_cpu()) return x;
  const auto columns = at(impl.shape.dim() - 1), rows = columns - 1;
  const bool is_transposed = impl.strides[rows] == 1 && impl.strides[columns] != 0;
  return is_transposed && impl.shape[rows] >= kSide && impl.shape[columns] >= kSide ? clone(x) : x;
}

// x seen as (outer, size of dim, inner).
inline Rows rows_along(const Tensor& x, int dim) {
  Rows rows;
  for (int i = 0; i < x.dim(); ++i) {
    const std::int64_t size = x.shape()[static_cast<std::size_t>(i)];
    if (i < dim)
      rows.outer *= size;
    else if (i == dim)
      rows.n = size;
    else
      rows.inner *= size;
  }
  return rows;
}

}  // namespace lockstep::raw
