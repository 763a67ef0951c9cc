// Raw operations: checked, not recorded by autograd. The public ones, recorded and documented, are in
// autograd/ops/functions.h.
//
// A wrapper here checks its arguments, allocates the result and calls one kernel of the device's table; it throws
// InvalidArgument naming the operation and both operands. Functions with `out` write there and need the exact shape.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "lockstep/tensor/tensor.h"

namespace lockstep {

// Throws InvalidArgument: this argument of `op` (null: its only tensor) is undefined.
[[noreturn]] void throw_undefined(const char* op, const char* argument);

// Throws InvalidArgument if an operand of `op` is undefined. Each operand but an only one has the name of the argument.
inline void require_defined(const char* op, const Tensor& x, const char* argument = nullptr) {
  if (!x.defined()) [[unlikely]]
    throw_undefined(op, argument);
}
template <class... Others>
void require_defined(const char* op, const Tensor& x, const char* argument, const Others&... others) {
  require_defined(op, x, argument);
  require_defined(op, others...);
}
void require_defined(const char* op, const std::vector<Tensor>& tensors);

}  // namespace lockstep

namespace lockstep::raw {

// --- creation (creation.cpp) ----------------------------------------------------------------------------------------
Tensor empty(const Shape& shape, const TensorOptions& options = {});
Tensor empty_like(const Tensor& like);
Tensor full(const Shape& shape, const Scalar& value, const TensorOptions& options = {});
Tensor zeros(const Shape& shape, const TensorOptions& options = {});
Tensor arange(const Scalar& start, const Scalar& end, const Scalar& step, const TensorOptions& options = {});
Tensor linspace(double start, double end, std::int64_t steps, const TensorOptions& options = {});
Tensor eye(std::int64_t n, std::int64_t m, const TensorOptions& options = {});
Tensor from_bytes(const void* data, const Shape& shape, DType dtype, const TensorOptions& options = {});  // copies
Tensor wrap_memory(void* data, const Shape& shape, DType dtype, Device device = {}, std::shared_ptr<void> owner = {});

// --- views (views.cpp) ----------------------------------------------------------------------------------------------
Tensor as_strided(const Tensor& x, const Shape& shape, const Strides& strides, std::int64_t offset_elements);
Tensor alias(const Tensor& x);                             // a new handle on the same storage and geometry
bool is_expanded(const Tensor& x);                         // several elements share one address
bool overlap(const Tensor& a, const Tensor& b);            // true if they may share an address
void require_writable(const char* op, const Tensor& out);  // throws InvalidArgument if `out` is expanded
Tensor view(const Tensor& x, const Shape& shape);
Tensor reshape(const Tensor& x, const Shape& shape);
Tensor transpose(const Tensor& x, std::int64_t dim_a, std::int64_t dim_b);
Tensor permute(const Tensor& x, const Shape& dims);
Tensor squeeze(const Tensor& x, std::int64_t dim);
Tensor unsqueeze(const Tensor& x, std::int64_t dim);
Tensor expand(const Tensor& x, const Shape& shape);
Tensor select(const Tensor& x, std::int64_t dim, std::int64_t index);
Tensor slice(const Tensor& x, std::int64_t dim, std::int64_t start, std::int64_t end, std::int64_t step);
Tensor diagonal(const Tensor& x, std::int64_t offset, std::int64_t dim1, std::int64_t dim2);
Tensor flip(const Tensor& x, const Shape& dims);  // a copy

// --- copies (copy.cpp) ----------------------------------------------------------------------------------------------
void copy(const Tensor& from, const Tensor& to);  // broadcasts, converts dtype, crosses devices
void fill(const Tensor& x, const Scalar& value, const char* op = "fill_");  // throws if the value does not fit
// Throws InvalidArgument, naming `op`, for a number that an element of `dtype` cannot hold.
void require_fits(const char* op, const Scalar& number, DType dtype);
Tensor to(const Tensor& x, DType dtype);
Tensor to(const Tensor& x, Device device);
Tensor contiguous(const Tensor& x);
Tensor clone(const Tensor& x);

// --- pointwise.def (pointwise_ops.cpp) ------------------------------------------------------------------------------
enum class Pointwise : std::uint8_t {
#define POINTWISE(name, ...) name,
#include "lockstep/tensor/ops/pointwise.def"
#undef POINTWISE
};
// The dtypes that the kernel of a pointwise function computes in.
enum class DTypeRule : std::uint8_t {
  kFloats,   // f32 and f64: integers are converted to f32 first
  kNumbers,  // integers as well, which keep their dtype
};
struct PointwiseParams {  // parameters of the functor: negative slope, limits, exponent
  double a = 0, b = 0;
};
const char* name(Pointwise op);
Tensor pointwise(Pointwise op, const Tensor& x, const PointwiseParams& params = {});  // f(x)
Tensor pointwise_derivative(Pointwise op, const Tensor& grad, const Tensor& x, const Tensor& y,
                            const PointwiseParams& params);  // grad f'(x)
Tensor pointwise_second_derivative(Pointwise op, const Tensor& grad, const Tensor& x,
                                   const PointwiseParams& params);  // grad f''(x)

// --- elementwise with several operands (elementwise.cpp) ------------------------------------------------------------
enum class Compare : std::uint8_t { kEqual, kNotEqual, kLess, kLessEqual, kGreater, kGreaterEqual };
Tensor add(const Tensor& a, const Tensor& b, const Scalar& alpha = 1);
Tensor sub(const Tensor& a, const Tensor& b, const Scalar& alpha = 1);
Tensor mul(const Tensor& a, const Tensor& b);
Tensor div(const Tensor& a, const Tensor& b);
Tensor pow(const Tensor& a, const Tensor& b);
Tensor maximum(const Tensor& a, const Tensor& b);
Tensor minimum(const Tensor& a, const Tensor& b);
Tensor compare(Compare relation, const Tensor& a, const Tensor& b);
Tensor where(const Tensor& condition, const Tensor& a, const Tensor& b);
// Step functions: all but kSign return integers as they are. kRound rounds halves to even numbers.
enum class Step : std::uint8_t { kFloor, kCeil, kRound, kTrunc, kSign };
Tensor step(Step function, const Tensor& x);
// kRemainder has the sign of the divisor, kFmod that of the dividend. An integer divisor of 0 throws InvalidArgument on
// CPU devices, and gives 0 on others.
enum class BinaryOp : std::uint8_t { kRemainder, kFmod, kFloorDivide, kAtan2, kAnd, kOr, kXor };
Tensor binary_op(BinaryOp function, const Tensor& a, const Tensor& b);
// Integers between lo and hi. A limit that is absent, or outside the dtype's range on its own side, does not limit.
Tensor clamp_integers(const Tensor& x, const std::optional<Scalar>& lo, const std::optional<Scalar>& hi);
// a[i] = a[i] op b[i]; b broadcasts to a, which keeps its dtype.
void add_(const Tensor& a, const Tensor& b, const Scalar& alpha = 1);
void sub_(const Tensor& a, const Tensor& b, const Scalar& alpha = 1);
void mul_(const Tensor& a, const Tensor& b);
void div_(const Tensor& a, const Tensor& b);
// A 0-d tensor of `number`, with the dtype that promotion next to `like` gives, or bool for a bool. Too large a number
// wraps, as in PyTorch. Throws InvalidArgument, which begins with `op`, if `like` is undefined.
Tensor scalar_like(const char* op, const Tensor& like, const Scalar& number);

// --- reductions (reduce.cpp): `dims` empty means all ----------------------------------------------------------------
Tensor sum(const Tensor& x, const Shape& dims = {}, bool keepdim = false);
void sum_out(const Tensor& x, const Shape& dims, bool keepdim, const Tensor& out);
Tensor mean(const Tensor& x, const Shape& dims = {}, bool keepdim = false);
// x is f32, f64 or i64.
Tensor prod(const Tensor& x, std::int64_t dim, bool keepdim = false);
Tensor max(const Tensor& x, const Shape& dims = {}, bool keepdim = false, const char* op = "max");
Tensor min(const Tensor& x, const Shape& dims = {}, bool keepdim = false, const char* op = "min");
Tensor var(const Tensor& x, const Shape& dims = {}, bool keepdim = false, std::int64_t correction = 1);
Tensor norm(const Tensor& x, const Shape& dims = {}, bool keepdim = false);  // Euclidean
Tensor p_norm(const Tensor& x, double p, const Shape& dims, bool keepdim);   // p finite, not 0
Tensor argmax(const Tensor& x, std::int64_t dim, bool keepdim = false, const char* op = "argmax");
Tensor argmin(const Tensor& x, std::int64_t dim, bool keepdim = false, const char* op = "argmin");
Tensor cumsum(const Tensor& x, std::int64_t dim, bool reverse = false);
Tensor softmax(const Tensor& x, std::int64_t dim);
Tensor log_softmax(const Tensor& x, std::int64_t dim);
Tensor logsumexp(const Tensor& x, const Shape& dims, bool keepdim = false);
Tensor softmax_backward(const Tensor& grad, const Tensor& y, std::int64_t dim);
Tensor log_softmax_backward(const Tensor& grad, const Tensor& y, std::int64_t dim);
bool equal(const Tensor& a, const Tensor& b);
bool allclose(const Tensor& a, const Tensor& b, double rtol, double atol, bool equal_nan);

// --- layer normalisation (layer_norm.cpp): over the last dimensions `shape`; weight, bias: `shape` or undefined -------
// RMS normalisation is not centered: its mean is 0. Errors name `op`.
struct Normalized {
  Tensor out;
  Tensor statistics;  // (2, rows): mean and 1 / sqrt(variance + eps) of each row
};
Normalized layer_norm(const char* op, const Tensor& x, const Shape& shape, const Tensor& weight, const Tensor& bias,
                      double eps, bool centered);
Tensor layer_norm_backward(const Tensor& grad, const Tensor& x, const Tensor& weight, const Tensor& statistics,
                           bool centered);
// Writes the gradients of the parameters that are defined.
void layer_norm_backward_affine(const Tensor& grad, const Tensor& x, const Tensor& statistics,
                                const Tensor& grad_weight, const Tensor& grad_bias);

// --- products (matmul.cpp) ------------------------------------------------------------------------------------------
// 1-D to batched N-D by NumPy's rule; transposed operands are read in place.
Tensor matmul(const Tensor& a, const Tensor& b);
void matmul_out(const Tensor& a, const Tensor& b, const Tensor& out);
// x (..., in), weight (out, in), bias (out) or undefined.
Tensor linear(const Tensor& x, const Tensor& weight, const Tensor& bias);

// --- printing (printing.cpp): as PyTorch, with `suffix` before the last parenthesis ---------------------------------
std::string to_string(const Tensor& x, const std::string& suffix = {});

// --- indexing (indexing.cpp) ----------------------------------------------------------------------------------------
bool is_skipped_by_cat(const Tensor& x);  // true for an empty 1-D tensor, which fits any others (PyTorch's rule)
Tensor cat(std::span<const Tensor> tensors, std::int64_t dim);
std::pair<std::int64_t, std::int64_t> index_range(const Tensor& index);  // lowest and highest of an i64 tensor; waits
Tensor index_select(const Tensor& x, std::int64_t dim, const Tensor& index);
// out = zeros(shape); out[..., index[i], ...] += src[..., i, ...]
Tensor index_add(const Shape& shape, std::int64_t dim, const Tensor& index, const Tensor& src);
Tensor gather(const Tensor& x, std::int64_t dim, const Tensor& index);
// For dim 0, x[index[i][j]][j] = f(x[index[i][j]][j], src[i][j]) in order of i; kAssign: of several, the last. On cuda
// devices the order of additions and assignments to one place is not fixed.
enum class Scatter : std::uint8_t { kAssign, kAdd, kMultiply, kMax, kMin };
void scatter_(const char* op, const Tensor& x, std::int64_t dim, const Tensor& index, const Tensor& src, Scatter mode);
Tensor scatter(const char* op, const Tensor& x, std::int64_t dim, const Tensor& index, const Tensor& src, Scatter mode);
Tensor scatter_add(const Tensor& x, std::int64_t dim, const Tensor& index, const Tensor& src);
// On a CPU device, writes src, `run` elements at a time, to the memory of x from each (valid) position on, in order.
void assign_runs(const Tensor& x, const Tensor& positions, std::int64_t run, const Tensor& src);
Tensor nonzero(const Tensor& x);  // (count, dim()) i64, found on the CPU
std::pair<Tensor, Tensor> sort(const Tensor& x, std::int64_t dim, bool descending);  // stable
std::pair<Tensor, Tensor> topk(const Tensor& x, std::int64_t k, std::int64_t dim, bool largest);

}  // namespace lockstep::raw
