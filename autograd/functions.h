// The public operations: differentiable, and recorded while grad mode is on and an input requires grad.
//
// Shapes broadcast by NumPy's rule and dtypes promote by PyTorch's. Every function throws InvalidArgument, naming
// itself and its operands, where shapes, dtypes or devices do not fit. `dims` empty means all dimensions; negative
// dimensions count from the end.
#pragma once

#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "lockstep/autograd/grad_mode.h"
#include "lockstep/tensor/size2d.h"
#include "lockstep/tensor/tensor.h"

namespace lockstep {

// --- arithmetic: out = a op b, elementwise --------------------------------------------------------------------------------
Tensor add(const Tensor& a, const Tensor& b, const Scalar& alpha = 1);  // a + alpha b
Tensor add(const Tensor& a, const Scalar& b);
Tensor sub(const Tensor& a, const Tensor& b, const Scalar& alpha = 1);  // a - alpha b; not for bool
Tensor sub(const Tensor& a, const Scalar& b);
Tensor mul(const Tensor& a, const Tensor& b);
Tensor mul(const Tensor& a, const Scalar& b);
Tensor div(const Tensor& a, const Tensor& b);  // true division: integers give f32
Tensor div(const Tensor& a, const Scalar& b);
Tensor pow(const Tensor& base, const Tensor& exponent);
Tensor pow(const Tensor& base, const Scalar& exponent);
Tensor pow(const Scalar& base, const Tensor& exponent);
Tensor maximum(const Tensor& a, const Tensor& b);  // ties share the gradient; NaN wins
Tensor minimum(const Tensor& a, const Tensor& b);

inline Tensor operator+(const Tensor& a, const Tensor& b) { return add(a, b); }  // elementwise
inline Tensor operator+(const Tensor& a, const Scalar& b) { return add(a, b); }
inline Tensor operator+(const Scalar& a, const Tensor& b) { return add(b, a); }
inline Tensor operator-(const Tensor& a, const Tensor& b) { return sub(a, b); }  // elementwise
inline Tensor operator-(const Tensor& a, const Scalar& b) { return sub(a, b); }
Tensor operator-(const Scalar& a, const Tensor& b);
Tensor operator-(const Tensor& a);
inline Tensor operator*(const Tensor& a, const Tensor& b) { return mul(a, b); }  // elementwise
inline Tensor operator*(const Tensor& a, const Scalar& b) { return mul(a, b); }
inline Tensor operator*(const Scalar& a, const Tensor& b) { return mul(b, a); }
inline Tensor operator/(const Tensor& a, const Tensor& b) { return div(a, b); }  // elementwise
inline Tensor operator/(const Tensor& a, const Scalar& b) { return div(a, b); }
Tensor operator/(const Scalar& a, const Tensor& b);

// --- comparisons: bool tensors, without gradient ---------------------------------------------------------------------------
Tensor operator==(const Tensor& a, const Tensor& b);
Tensor operator!=(const Tensor& a, const Tensor& b);
Tensor operator<(const Tensor& a, const Tensor& b);
Tensor operator<=(const Tensor& a, const Tensor& b);
Tensor operator>(const Tensor& a, const Tensor& b);
Tensor operator>=(const Tensor& a, const Tensor& b);
Tensor operator==(const Tensor& a, const Scalar& b);
Tensor operator!=(const Tensor& a, const Scalar& b);
Tensor operator<(const Tensor& a, const Scalar& b);
Tensor operator<=(const Tensor& a, const Scalar& b);
Tensor operator>(const Tensor& a, const Scalar& b);
Tensor operator>=(const Tensor& a, const Scalar& b);

// True where shapes and all elements are the same, whatever their dtypes (NaN differs from everything).
bool equal(const Tensor& a, const Tensor& b);
// True where |a - b| <= atol + rtol |b| everywhere.
bool allclose(const Tensor& a, const Tensor& b, double rtol = 1e-5, double atol = 1e-8);

// --- pointwise functions (tensor/pointwise_internal.h has their formulas) -------------------------------------------------------------
Tensor neg(const Tensor& x);
Tensor abs(const Tensor& x);  // gradient 0 at 0
Tensor exp(const Tensor& x);
Tensor log(const Tensor& x);
Tensor sqrt(const Tensor& x);
Tensor rsqrt(const Tensor& x);  // 1 / sqrt(x)
Tensor sin(const Tensor& x);
Tensor cos(const Tensor& x);
Tensor tanh(const Tensor& x);
Tensor sigmoid(const Tensor& x);                          // 1 / (1 + exp(-x))
Tensor relu(const Tensor& x);                             // max(x, 0), gradient 0 at 0
Tensor leaky_relu(const Tensor& x, double slope = 0.01);  // x for x > 0, slope x below
Tensor gelu(const Tensor& x);                             // x Phi(x), the exact form with erf
Tensor silu(const Tensor& x);                             // x sigmoid(x)
Tensor softplus(const Tensor& x);                         // log(1 + exp(x))
Tensor erf(const Tensor& x);
// min(max(x, lo), hi); a limit that is not given does not limit. The gradient is 1 strictly between the limits and
// 0 elsewhere. Integers keep their dtype unless a limit is a fraction.
Tensor clamp(const Tensor& x, const std::optional<Scalar>& lo, const std::optional<Scalar>& hi = std::nullopt);
inline Tensor clamp_min(const Tensor& x, const Scalar& lo) { return clamp(x, lo); }                // max(x, lo)
inline Tensor clamp_max(const Tensor& x, const Scalar& hi) { return clamp(x, std::nullopt, hi); }  // min(x, hi)

// --- reductions -------------------------------------------------------------------------------------------------------------
Tensor sum(const Tensor& x);  // bool and integers give i64
Tensor sum(const Tensor& x, const Shape& dims, bool keepdim = false);
Tensor mean(const Tensor& x);  // sum / number of elements; f32 or f64
Tensor mean(const Tensor& x, const Shape& dims, bool keepdim = false);
// The largest element along the dimensions; NaN wins. Equal ones share the gradient. Where NaN won, the gradient of its
// slice is NaN, as in PyTorch.
Tensor amax(const Tensor& x, const Shape& dims = {}, bool keepdim = false);
Tensor amin(const Tensor& x, const Shape& dims = {}, bool keepdim = false);  // the smallest element, as amax
// The largest element of all; NaN wins. Equal ones share the gradient; several NaN do, too.
Tensor max(const Tensor& x);
Tensor min(const Tensor& x);  // the smallest element, as max(x)
// The largest values and their i64 indices along a dimension: the first of equal ones, which gets the gradient; NaN wins.
std::pair<Tensor, Tensor> max(const Tensor& x, std::int64_t dim, bool keepdim = false);
// The smallest values and their indices, as max(x, dim).
std::pair<Tensor, Tensor> min(const Tensor& x, std::int64_t dim, bool keepdim = false);
inline Tensor max(const Tensor& a, const Tensor& b) { return maximum(a, b); }    // with a number: clamp_min
inline Tensor min(const Tensor& a, const Tensor& b) { return minimum(a, b); }    // with a number: clamp_max
Tensor var(const Tensor& x);                                                     // unbiased: divided by n - 1
Tensor var(const Tensor& x, const Shape& dims, const VarOptions& options = {});  // divided by n - correction
Tensor std(const Tensor& x);  // the square root of var; gradient 0 where it is 0
Tensor std(const Tensor& x, const Shape& dims, const VarOptions& options = {});
// (sum |x|^p)^(1/p), gradient 0 where it is 0; for p = infinity the largest |x|, for -infinity the smallest, for 0
// the number of elements that are not 0. p = 2 is the Euclidean norm.
Tensor norm(const Tensor& x, const Scalar& p = 2);
Tensor norm(const Tensor& x, const Scalar& p, const Shape& dims, bool keepdim = false);
Tensor logsumexp(const Tensor& x, const Shape& dims, bool keepdim = false);  // log(sum(exp(x))), without overflow
// i64, the first of equal ones; without a dimension, of the flattened tensor.
Tensor argmax(const Tensor& x, std::optional<std::int64_t> dim = std::nullopt, bool keepdim = false);
Tensor argmin(const Tensor& x, std::optional<std::int64_t> dim = std::nullopt, bool keepdim = false);  // as argmax
Tensor cumsum(const Tensor& x, std::int64_t dim);       // sums up to and with each position of `dim`
Tensor softmax(const Tensor& x, std::int64_t dim);      // exp(x) / sum(exp(x)) along `dim`, without overflow
Tensor log_softmax(const Tensor& x, std::int64_t dim);  // log(softmax(x)), without overflow
// (x - mean) / sqrt(var + eps) * weight + bias, with mean and (biased) variance over the last dimensions, which are
// `shape`; weight and bias have that shape and x's dtype, or are undefined. (Ba et al., 2016)
Tensor layer_norm(const Tensor& x, const Shape& shape, const Tensor& weight = {}, const Tensor& bias = {},
                  double eps = 1e-5);

// (x - mean) / sqrt(var + eps) * weight + bias, for each channel of x (batch, channels, ...); weight and bias (channels) or
// undefined. While training, mean and (biased) variance are the batch's, and the running ones (channels; or undefined) become
// (1 - momentum) running + momentum batch's, with the unbiased variance; otherwise the running ones are taken. Throws
// InvalidArgument also where a channel has a single value while training. (Ioffe and Szegedy, 2015)
Tensor batch_norm(const Tensor& x, const Tensor& weight, const Tensor& bias, const Tensor& running_mean,
                  const Tensor& running_var, bool training, double momentum = 0.1, double eps = 1e-5);

// --- pictures (images, channels, height, width), f32 or f64: out has floor((size + 2 padding - dilation (kernel - 1) - 1) /
// stride) + 1 elements along each side ----------------------------------------------------------------------------------------
// Cross-correlation, as everywhere in deep learning: x (n, in, h, w), weight (out, in / groups, kernel), bias (out) or
// undefined -> (n, out, h', w').
Tensor conv2d(const Tensor& x, const Tensor& weight, const Tensor& bias = {}, const Size2d& stride = 1,
              const Size2d& padding = 0, const Size2d& dilation = 1, std::int64_t groups = 1);
// The largest element of each window (NaN wins), whose gradient goes to the first of equal ones. A stride of 0 is the
// kernel's size; the padding, at most half of the kernel, is never the largest. ceil_mode: sizes are rounded up, so that a
// last window may reach past the end, if it begins before it (in the picture or the padding in front).
Tensor max_pool2d(const Tensor& x, const Size2d& kernel, const Size2d& stride = 0, const Size2d& padding = 0,
                  const Size2d& dilation = 1, bool ceil_mode = false);
// The mean of each window, padding included as zeros or left out; what ceil_mode adds beyond the padding never counts.
Tensor avg_pool2d(const Tensor& x, const Size2d& kernel, const Size2d& stride = 0, const Size2d& padding = 0,
                  bool ceil_mode = false, bool count_include_pad = true);

// --- products -----------------------------------------------------------------------------------------------------------------
// (n) (n) -> (); (m, k) (k, n) -> (m, n); leading dimensions broadcast. Transposed views are read without a copy.
Tensor matmul(const Tensor& a, const Tensor& b);
// x (..., in), weight (out, in), bias (out) or undefined -> (..., out): x weight^T + bias
Tensor linear(const Tensor& x, const Tensor& weight, const Tensor& bias = {});

// --- joining and cutting --------------------------------------------------------------------------------------------------------
Tensor cat(const std::vector<Tensor>& tensors, std::int64_t dim = 0);  // joined along `dim`; other sizes are equal
// Joined along a new dimension; all sizes are equal.
Tensor stack(const std::vector<Tensor>& tensors, std::int64_t dim = 0);
// Views of `size` rows each along `dim`; the last may be smaller.
std::vector<Tensor> split(const Tensor& x, std::int64_t size, std::int64_t dim = 0);
// At most `count` views of ceil(n / count) rows each, as PyTorch's chunk.
std::vector<Tensor> chunk(const Tensor& x, std::int64_t count, std::int64_t dim = 0);

// --- indexing: index tensors are i64 (or i32) -------------------------------------------------------------------------------------
Tensor where(const Tensor& condition, const Tensor& a, const Tensor& b);
Tensor where(const Tensor& condition, const Tensor& a, const Scalar& b);
Tensor where(const Tensor& condition, const Scalar& a, const Tensor& b);
Tensor masked_fill(const Tensor& x, const Tensor& mask, const Scalar& value);
// Rows index[i] of x along `dim`; index is 1-D.
Tensor index_select(const Tensor& x, std::int64_t dim, const Tensor& index);
// out[i][j] = x[index[i][j]][j] for dim 0, and so on; out has the shape of index.
Tensor gather(const Tensor& x, std::int64_t dim, const Tensor& index);
// A copy of x with out[index[i][j]][j] += src[i][j] for dim 0, and so on, added in order of i.
Tensor scatter_add(const Tensor& x, std::int64_t dim, const Tensor& index, const Tensor& src);
// Values and i64 indices; stable, NaN last (first where descending).
std::pair<Tensor, Tensor> sort(const Tensor& x, std::int64_t dim = -1, bool descending = false);
std::pair<Tensor, Tensor> topk(const Tensor& x, std::int64_t k, std::int64_t dim = -1, bool largest = true);

}  // namespace lockstep
