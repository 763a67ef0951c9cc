/// \file
/// The public operations: differentiable, and recorded while grad mode is on and an input requires grad.
///
/// Shapes broadcast by NumPy's rules and dtypes promote by PyTorch's. Every function throws InvalidArgument, naming
/// itself and its operands, if shapes, dtypes or devices do not match. Empty `dims` means all dimensions; negative
/// dimensions count from the end.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/autograd/grad_mode.h"
#include "lockstep/tensor/size2d.h"
#include "lockstep/tensor/tensor.h"
#include "lockstep/tensor/tensor_index.h"

namespace lockstep {

// --- arithmetic: out = a op b, elementwise --------------------------------------------------------------------------------
Tensor add(const Tensor& a, const Tensor& b, const Scalar& alpha = 1);  ///< a + alpha b
Tensor add(const Tensor& a, const Scalar& b);
Tensor sub(const Tensor& a, const Tensor& b, const Scalar& alpha = 1);  ///< a - alpha b; not for bool
Tensor sub(const Tensor& a, const Scalar& b);
Tensor mul(const Tensor& a, const Tensor& b);
Tensor mul(const Tensor& a, const Scalar& b);
Tensor div(const Tensor& a, const Tensor& b);  ///< true division: integers give f32
Tensor div(const Tensor& a, const Scalar& b);
Tensor pow(const Tensor& base, const Tensor& exponent);
Tensor pow(const Tensor& base, const Scalar& exponent);
Tensor pow(const Scalar& base, const Tensor& exponent);
Tensor maximum(const Tensor& a, const Tensor& b);  ///< ties share the gradient; NaN wins
Tensor minimum(const Tensor& a, const Tensor& b);
/// a - b floor(a / b), with the sign of b, as Python's %. An integer divisor of 0 throws InvalidArgument on the CPU.
Tensor remainder(const Tensor& a, const Tensor& b);
Tensor remainder(const Tensor& a, const Scalar& b);
Tensor remainder(const Scalar& a, const Tensor& b);
Tensor fmod(const Tensor& a, const Tensor& b);  ///< a - b trunc(a / b), with the sign of a, as C's fmod
Tensor fmod(const Tensor& a, const Scalar& b);
Tensor floor_divide(const Tensor& a, const Tensor& b);  ///< floor(a / b) in the promoted dtype; gradient 0
Tensor floor_divide(const Tensor& a, const Scalar& b);
/// The angle of the point (b, a) in (-pi, pi]; integers give f32. The gradient at (0, 0) is 0.
Tensor atan2(const Tensor& a, const Tensor& b);

inline Tensor operator+(const Tensor& a, const Tensor& b) { return add(a, b); }  ///< elementwise
inline Tensor operator+(const Tensor& a, const Scalar& b) { return add(a, b); }
inline Tensor operator+(const Scalar& a, const Tensor& b) { return add(b, a); }
inline Tensor operator-(const Tensor& a, const Tensor& b) { return sub(a, b); }  ///< elementwise
inline Tensor operator-(const Tensor& a, const Scalar& b) { return sub(a, b); }
Tensor operator-(const Scalar& a, const Tensor& b);
Tensor operator-(const Tensor& a);
inline Tensor operator*(const Tensor& a, const Tensor& b) { return mul(a, b); }  ///< elementwise
inline Tensor operator*(const Tensor& a, const Scalar& b) { return mul(a, b); }
inline Tensor operator*(const Scalar& a, const Tensor& b) { return mul(b, a); }
inline Tensor operator/(const Tensor& a, const Tensor& b) { return div(a, b); }  ///< elementwise
inline Tensor operator/(const Tensor& a, const Scalar& b) { return div(a, b); }
Tensor operator/(const Scalar& a, const Tensor& b);
inline Tensor operator%(const Tensor& a, const Tensor& b) { return remainder(a, b); }  ///< elementwise
inline Tensor operator%(const Tensor& a, const Scalar& b) { return remainder(a, b); }
inline Tensor operator%(const Scalar& a, const Tensor& b) { return remainder(a, b); }

// --- comparisons: bool tensors, without gradient ------------------------------------------------------------------
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
inline Tensor operator==(const Scalar& a, const Tensor& b) { return b == a; }
inline Tensor operator!=(const Scalar& a, const Tensor& b) { return b != a; }
inline Tensor operator<(const Scalar& a, const Tensor& b) { return b > a; }
inline Tensor operator<=(const Scalar& a, const Tensor& b) { return b >= a; }
inline Tensor operator>(const Scalar& a, const Tensor& b) { return b < a; }
inline Tensor operator>=(const Scalar& a, const Tensor& b) { return b <= a; }

Tensor isnan(const Tensor& x);     ///< false for integers, as isinf
Tensor isinf(const Tensor& x);     ///< true for both infinities
Tensor isfinite(const Tensor& x);  ///< neither NaN nor infinite

// --- logic: an element counts as true if it differs from 0; the result is bool -------------------------------------
Tensor logical_not(const Tensor& x);
Tensor logical_and(const Tensor& a, const Tensor& b);
Tensor logical_or(const Tensor& a, const Tensor& b);
Tensor logical_xor(const Tensor& a, const Tensor& b);

// --- bits of integers, and logic of bools; floating-point operands throw InvalidArgument ---------------------------
Tensor bitwise_not(const Tensor& x);
Tensor bitwise_and(const Tensor& a, const Tensor& b);
Tensor bitwise_and(const Tensor& a, const Scalar& b);
Tensor bitwise_or(const Tensor& a, const Tensor& b);
Tensor bitwise_or(const Tensor& a, const Scalar& b);
Tensor bitwise_xor(const Tensor& a, const Tensor& b);
Tensor bitwise_xor(const Tensor& a, const Scalar& b);
inline Tensor operator~(const Tensor& x) { return bitwise_not(x); }                      ///< elementwise
inline Tensor operator&(const Tensor& a, const Tensor& b) { return bitwise_and(a, b); }  ///< elementwise
inline Tensor operator&(const Tensor& a, const Scalar& b) { return bitwise_and(a, b); }
inline Tensor operator|(const Tensor& a, const Tensor& b) { return bitwise_or(a, b); }  ///< elementwise
inline Tensor operator|(const Tensor& a, const Scalar& b) { return bitwise_or(a, b); }
inline Tensor operator^(const Tensor& a, const Tensor& b) { return bitwise_xor(a, b); }  ///< elementwise
inline Tensor operator^(const Tensor& a, const Scalar& b) { return bitwise_xor(a, b); }

// --- truth of tensors ----------------------------------------------------------------------------------------------
/// True if an element differs from 0. Over no elements: false.
Tensor any(const Tensor& x, const Shape& dims = {}, bool keepdim = false);
/// True if all elements differ from 0. Over no elements: true.
Tensor all(const Tensor& x, const Shape& dims = {}, bool keepdim = false);

/// True if shapes and all elements are equal, whatever the dtypes (NaN differs from everything).
bool equal(const Tensor& a, const Tensor& b);
/// True if |a - b| <= atol + rtol |b| for all elements. NaN is close to NaN only if `equal_nan`. Throws InvalidArgument
/// if the dtypes differ.
bool allclose(const Tensor& a, const Tensor& b, double rtol = 1e-5, double atol = 1e-8, bool equal_nan = false);

// --- pointwise functions (formulas: tensor/kernels/pointwise_internal.h) --------------------------------------------------
Tensor neg(const Tensor& x);
Tensor abs(const Tensor& x);  ///< gradient 0 at 0
Tensor exp(const Tensor& x);
Tensor log(const Tensor& x);
Tensor sqrt(const Tensor& x);
Tensor rsqrt(const Tensor& x);  ///< 1 / sqrt(x)
Tensor sin(const Tensor& x);
Tensor cos(const Tensor& x);
Tensor tanh(const Tensor& x);
Tensor sigmoid(const Tensor& x);                          ///< 1 / (1 + exp(-x))
Tensor relu(const Tensor& x);                             ///< max(x, 0), gradient 0 at 0
Tensor leaky_relu(const Tensor& x, double slope = 0.01);  ///< x for x > 0, slope x below
Tensor gelu(const Tensor& x);                             ///< x Phi(x), the exact form with erf
Tensor gelu_tanh(const Tensor& x);  ///< its approximation x / 2 (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3)))
Tensor silu(const Tensor& x);       ///< x sigmoid(x)
Tensor mish(const Tensor& x);       ///< x tanh(softplus(x))
Tensor hardswish(const Tensor& x);  ///< x clamp(x + 3, 0, 6) / 6
/// x for x > 0, alpha (exp(x) - 1) below.
Tensor elu(const Tensor& x, double alpha = 1);
Tensor erf(const Tensor& x);
Tensor log1p(const Tensor& x);  ///< log(1 + x), precise for small x
Tensor expm1(const Tensor& x);  ///< exp(x) - 1, precise for small x
Tensor log2(const Tensor& x);
Tensor log10(const Tensor& x);
Tensor tan(const Tensor& x);
Tensor asin(const Tensor& x);
Tensor acos(const Tensor& x);
Tensor atan(const Tensor& x);
Tensor reciprocal(const Tensor& x);  ///< 1 / x; integers give f32
Tensor square(const Tensor& x);      ///< x^2
// Step functions have gradient 0. Integers are returned unchanged, except by sign.
Tensor floor(const Tensor& x);
Tensor ceil(const Tensor& x);
Tensor round(const Tensor& x);  ///< to the nearest integer, halves to the even one
Tensor trunc(const Tensor& x);  ///< towards 0
Tensor sign(const Tensor& x);   ///< -1, 0 or 1; 0 for NaN
/// log(1 + exp(beta x)) / beta, and x itself where beta x > threshold.
Tensor softplus(const Tensor& x, double beta = 1, double threshold = 20);
/// min(max(x, lo), hi); either limit may be left out. The gradient is 1 strictly between the limits and 0 elsewhere.
/// Integers keep their dtype unless a limit is a floating-point number.
Tensor clamp(const Tensor& x, const std::optional<Scalar>& lo, const std::optional<Scalar>& hi = std::nullopt);
Tensor clamp_min(const Tensor& x, const Scalar& lo);  ///< max(x, lo)
Tensor clamp_max(const Tensor& x, const Scalar& hi);  ///< min(x, hi)

// --- reductions -------------------------------------------------------------------------------------------------------------
Tensor sum(const Tensor& x, const Shape& dims = {}, bool keepdim = false);   ///< bool and integers give i64
Tensor mean(const Tensor& x, const Shape& dims = {}, bool keepdim = false);  ///< sum / element count; floating point
/// The largest element along the dimensions; NaN wins. Equal elements share the gradient. If the result is NaN, the
/// gradient of its slice is NaN, as in PyTorch.
Tensor amax(const Tensor& x, const Shape& dims = {}, bool keepdim = false);
Tensor amin(const Tensor& x, const Shape& dims = {}, bool keepdim = false);  ///< the smallest element, as amax
/// The largest of all elements; NaN wins. Equal elements share the gradient, and so do several NaN.
Tensor max(const Tensor& x);
Tensor min(const Tensor& x);  ///< the smallest element, as max(x)
/// The largest values and their i64 indices along a dimension; NaN wins. Of equal elements, the first is chosen and
/// gets the gradient.
std::pair<Tensor, Tensor> max(const Tensor& x, std::int64_t dim, bool keepdim = false);
/// The smallest values and their indices, as max(x, dim).
std::pair<Tensor, Tensor> min(const Tensor& x, std::int64_t dim, bool keepdim = false);
Tensor max(const Tensor& a, const Tensor& b);  ///< maximum(a, b); for a number, see clamp_min
Tensor min(const Tensor& a, const Tensor& b);  ///< minimum(a, b); for a number, see clamp_max
/// Unbiased by default: the divisor is n - correction, and the correction is 1.
Tensor var(const Tensor& x, const Shape& dims = {}, const VarOptions& options = {});
/// The square root of var; gradient 0 where std is 0.
Tensor std(const Tensor& x, const Shape& dims = {}, const VarOptions& options = {});
std::pair<Tensor, Tensor> var_mean(const Tensor& x, const Shape& dims = {}, const VarOptions& options = {});
std::pair<Tensor, Tensor> std_mean(const Tensor& x, const Shape& dims = {}, const VarOptions& options = {});
Tensor prod(const Tensor& x);  ///< the product of all elements; bool and integers give i64
Tensor prod(const Tensor& x, std::int64_t dim, bool keepdim = false);
Tensor count_nonzero(const Tensor& x, const Shape& dims = {});  ///< i64
/// (sum |x|^p)^(1/p), gradient 0 where the norm is 0. For p = infinity the largest |x|, for -infinity the smallest, for
/// 0 the number of nonzero elements. p = 2 is the Euclidean norm.
Tensor norm(const Tensor& x, const Scalar& p = 2, const Shape& dims = {}, bool keepdim = false);
Tensor logsumexp(const Tensor& x, const Shape& dims, bool keepdim = false);  ///< log(sum(exp(x))), without overflow
/// The i64 index of the largest element, the first if several are equal. Without `dim`: an index into the flattened x.
Tensor argmax(const Tensor& x, std::optional<std::int64_t> dim = std::nullopt, bool keepdim = false);
Tensor argmin(const Tensor& x, std::optional<std::int64_t> dim = std::nullopt, bool keepdim = false);  ///< as argmax
Tensor cumsum(const Tensor& x, std::int64_t dim);       ///< cumulative sums along `dim`
Tensor softmax(const Tensor& x, std::int64_t dim);      ///< exp(x) / sum(exp(x)) along `dim`, without overflow
Tensor log_softmax(const Tensor& x, std::int64_t dim);  ///< log(softmax(x)), without overflow
/// (x - mean) / sqrt(var + eps) * weight + bias, with mean and (biased) variance over the last dimensions, whose sizes
/// are `shape`. weight and bias have that shape and x's dtype, or are undefined. (Ba et al., 2016)
Tensor layer_norm(const Tensor& x, const Shape& shape, const Tensor& weight = {}, const Tensor& bias = {},
                  double eps = 1e-5);

/// x / sqrt(mean(x^2) + eps) * weight, the mean over the last dimensions, whose sizes are `shape`. weight has that shape
/// and x's dtype, or is undefined. eps defaults to the machine epsilon of x's dtype (f32: 1.2e-7). Returns x's shape.
/// Throws InvalidArgument if x's last sizes are not `shape`, or for another weight. (Zhang and Sennrich, 2019)
Tensor rms_norm(const Tensor& x, const Shape& shape, const Tensor& weight = {},
                std::optional<double> eps = std::nullopt);

/// x / max(norm(x, p), eps) along `dim`.
Tensor normalize(const Tensor& x, double p = 2, std::int64_t dim = 1, double eps = 1e-12);
/// sum(a b) / (max(norm(a), eps) max(norm(b), eps)) along `dim`; a and b broadcast.
Tensor cosine_similarity(const Tensor& a, const Tensor& b, std::int64_t dim = 1, double eps = 1e-8);

struct RotaryOptions {
  double base = 10000;      ///< pair i turns by base^(-2i / dim) radians per position
  std::int64_t first = 0;   ///< position of the first element along time
  bool interleaved = true;  ///< pair i is (2i, 2i + 1), as in the paper; otherwise (i, i + dim / 2)
};
/// Rotary position embedding (RoPE): rotates pair i of x (..., time, dim) by position * base^(-2i / dim) radians, so that
/// the dot product of a query and a key depends on their positions only through the difference. Returns x's shape.
/// Throws InvalidArgument unless x is floating point with an even dim, and base is positive. (Su et al., 2021)
Tensor rotary_embedding(const Tensor& x, const RotaryOptions& options = {});

/// (x - mean) / sqrt(var + eps) * weight + bias, for each channel of x (batch, channels, ...). weight, bias and the
/// running statistics are (channels) or undefined. If `training`, mean and (biased) variance are those of the batch,
/// and running = (1 - momentum) running + momentum batch, with the unbiased variance. Otherwise the running statistics
/// are used. Throws InvalidArgument if a channel has a single value while training. (Ioffe and Szegedy, 2015)
Tensor batch_norm(const Tensor& x, const Tensor& weight, const Tensor& bias, const Tensor& running_mean,
                  const Tensor& running_var, bool training, double momentum = 0.1, double eps = 1e-5);

// --- images (batch, channels, height, width), floating point: output sizes follow conv2d's formula ------------
// A single image (channels, height, width) is a batch of one; the result has no batch dimension either.
// Cross-correlation, as in PyTorch: x (n, in, h, w), weight (out, in / groups, kernel), bias (out) or undefined
// -> (n, out, h', w'), h' = floor((h + 2 padding - dilation (kernel - 1) - 1) / stride) + 1, and w' likewise.
Tensor conv2d(const Tensor& x, const Tensor& weight, const Tensor& bias = {}, const Size2d& stride = 1,
              const Size2d& padding = 0, const Size2d& dilation = 1, std::int64_t groups = 1);
/// The gradient of conv2d by its input, as an operation: x (n, in, h, w), weight (in, out / groups, kernel), bias (out) or
/// undefined -> (n, out, h', w'), h' = (h - 1) stride - 2 padding + dilation (kernel - 1) + output_padding + 1. Throws
/// InvalidArgument unless output_padding is in [0, stride).
Tensor conv_transpose2d(const Tensor& x, const Tensor& weight, const Tensor& bias = {}, const Size2d& stride = 1,
                        const Size2d& padding = 0, const Size2d& output_padding = 0, std::int64_t groups = 1,
                        const Size2d& dilation = 1);
/// The largest element of each window (NaN wins). Of equal elements, the first gets the gradient. Stride 0 means the
/// kernel's size. The padding is at most half the kernel and counts as -infinity. ceil_mode rounds sizes up: a last
/// window may reach past the end if it starts inside the image or the leading padding.
Tensor max_pool2d(const Tensor& x, const Size2d& kernel, const Size2d& stride = 0, const Size2d& padding = 0,
                  const Size2d& dilation = 1, bool ceil_mode = false);
/// The mean of each window. The padding counts as zeros or is left out; elements that ceil_mode adds beyond the padding
/// never count.
Tensor avg_pool2d(const Tensor& x, const Size2d& kernel, const Size2d& stride = 0, const Size2d& padding = 0,
                  bool ceil_mode = false, bool count_include_pad = true);

// --- products -----------------------------------------------------------------------------------------------------
// (n) (n) -> (); (m, k) (k, n) -> (m, n); leading dimensions broadcast. Both of one dtype, not bool. Transposed views
// are read without a copy, so that the last bits of an f32 product may differ from those for contiguous copies
// (docs/deviations.md).
Tensor matmul(const Tensor& a, const Tensor& b);
/// x (..., in), weight (out, in), bias (out) or undefined -> (..., out): x weight^T + bias
Tensor linear(const Tensor& x, const Tensor& weight, const Tensor& bias = {});

Tensor mm(const Tensor& a, const Tensor& b);     ///< (m, k) (k, n) -> (m, n)
Tensor bmm(const Tensor& a, const Tensor& b);    ///< (batch, m, k) (batch, k, n) -> (batch, m, n)
Tensor dot(const Tensor& a, const Tensor& b);    ///< (n) (n) -> ()
Tensor outer(const Tensor& a, const Tensor& b);  ///< (m) (n) -> (m, n)
/// beta x + alpha mm(a, b); x broadcasts to (m, n), and is ignored if beta is 0.
Tensor addmm(const Tensor& x, const Tensor& a, const Tensor& b, const Scalar& beta = 1, const Scalar& alpha = 1);
/// beta x + alpha bmm(a, b), as addmm.
Tensor baddbmm(const Tensor& x, const Tensor& a, const Tensor& b, const Scalar& beta = 1, const Scalar& alpha = 1);
/// Sums of products in Einstein's notation: einsum("bij,bjk->bik", {a, b}). Every dimension has a letter, and "..." are
/// any further dimensions, which broadcast. Letters that the output lacks are summed over; a letter that an operand has
/// twice is its diagonal. Without "->" the output has the letters that occur once, in alphabetical order. Operands are
/// contracted from left to right, each pair by one batched product. Throws InvalidArgument naming operand and subscript
/// if sizes or numbers of dimensions do not match.
Tensor einsum(const std::string& equation, const std::vector<Tensor>& operands);

/// Options of scaled_dot_product_attention.
struct AttentionOptions {
  /// Broadcasts to (..., time, time_k). bool: true where a query attends to a key. q's dtype: added to the scores.
  Tensor attn_mask = {};
  /// Probability of zeroing a weight; the others are divided by 1 - dropout_p. Always applied: pass 0 in eval mode.
  double dropout_p = 0;
  bool is_causal = false;  ///< query i attends to keys 0 to i, also if time_k differs; not together with attn_mask
  std::optional<double> scale = std::nullopt;  ///< factor of q k^T; 1 / sqrt(dim) unless given
  /// Grouped queries: k and v have fewer heads (dimension -3) than q, a divisor of their number; neighbouring heads of q
  /// share one of theirs, which is not copied. (Ainslie et al., 2023)
  bool enable_gqa = false;
};
/// softmax(scale q k^T + mask) v, over the keys. q (..., time, dim), k (..., time_k, dim), v (..., time_k, dim_v) ->
/// (..., time, dim_v), floating point; time and time_k are the sequence lengths of queries and keys; leading
/// dimensions, for example (batch, heads), broadcast. A query that attends to no key has result 0 and gradient 0. On
/// CPU devices the scores are computed in tiles, and recomputed in backward: memory is
/// O((time + time_k) (dim + dim_v)). If the mask requires grad, or with create_graph, the (time, time_k) matrix is
/// stored. Throws InvalidArgument for other shapes and dtypes, a mask together with .is_causal, and .dropout_p outside
/// [0, 1]. (Vaswani et al., 2017; Dao et al., 2022)
Tensor scaled_dot_product_attention(const Tensor& q, const Tensor& k, const Tensor& v,
                                    const AttentionOptions& options = {});

/// Zeroes each element with probability p and divides the others by 1 - p; returns x itself unless `training`. The
/// mask is not stored: backward draws it again. Throws InvalidArgument unless x is floating point and p is in [0, 1].
Tensor dropout(const Tensor& x, double p = 0.5, bool training = true);

// --- views as functions ---------------------------------------------------------------------------------------------
inline Tensor reshape(const Tensor& x, const Shape& shape) { return x.reshape(shape); }  ///< see Tensor, as the others
inline Tensor flatten(const Tensor& x, std::int64_t start_dim = 0, std::int64_t end_dim = -1) {
  return x.flatten(start_dim, end_dim);
}
inline Tensor transpose(const Tensor& x, std::int64_t dim_a, std::int64_t dim_b) { return x.transpose(dim_a, dim_b); }
inline Tensor permute(const Tensor& x, const Shape& dims) { return x.permute(dims); }
inline Tensor squeeze(const Tensor& x) { return x.squeeze(); }
inline Tensor squeeze(const Tensor& x, std::int64_t dim) { return x.squeeze(dim); }
inline Tensor unsqueeze(const Tensor& x, std::int64_t dim) { return x.unsqueeze(dim); }

// --- joining and splitting ----------------------------------------------------------------------------------------
/// Joined along `dim`; the other sizes are equal. Empty 1-D tensors are skipped, whatever the others' shapes.
Tensor cat(const std::vector<Tensor>& tensors, std::int64_t dim = 0);
/// Joined along a new dimension; all sizes are equal.
Tensor stack(const std::vector<Tensor>& tensors, std::int64_t dim = 0);
/// Views of `size` rows each along `dim`; the last may be smaller.
std::vector<Tensor> split(const Tensor& x, std::int64_t size, std::int64_t dim = 0);
/// Views of sizes[0], sizes[1], ... rows, which add up to the size of `dim`.
std::vector<Tensor> split(const Tensor& x, const std::vector<std::int64_t>& sizes, std::int64_t dim = 0);
/// At most `count` views of ceil(n / count) rows each, like PyTorch's chunk.
std::vector<Tensor> chunk(const Tensor& x, std::int64_t count, std::int64_t dim = 0);

std::vector<Tensor> unbind(const Tensor& x, std::int64_t dim = 0);  ///< views x.select(dim, i) of all positions

// --- rearranging, repeating and padding ----------------------------------------------------------------------------
Tensor flip(const Tensor& x, const Shape& dims);  ///< a copy with the elements along `dims` in reverse order
/// Moves the elements along each of `dims` by its shift, those beyond the end to the start. Without dims: x flattened.
Tensor roll(const Tensor& x, const Shape& shifts, const Shape& dims = {});
Tensor tile(const Tensor& x, const Shape& counts);  ///< repeat, with counts of 1 prepended for dimensions without one
/// Each position of `dim` `repeats` times in a row. Without dim: of x flattened.
Tensor repeat_interleave(const Tensor& x, std::int64_t repeats, std::optional<std::int64_t> dim = std::nullopt);
/// Position i of `dim` repeats[i] times in a row.
Tensor repeat_interleave(const Tensor& x, const Tensor& repeats, std::optional<std::int64_t> dim = std::nullopt);
/// The view in which dimension source[i] is dimension destination[i]; the others keep their order.
Tensor movedim(const Tensor& x, const Shape& source, const Shape& destination);
/// One view for each 1-D (or 0-d) tensor, expanded to all their sizes: the i-th varies along dimension i. For indexing
/// "xy", dimensions 0 and 1 are swapped.
std::vector<Tensor> meshgrid(const std::vector<Tensor>& tensors, const std::string& indexing = "ij");
/// The view of the elements with index(dim2) - index(dim1) = offset; its last dimension runs along the diagonal.
Tensor diagonal(const Tensor& x, std::int64_t offset = 0, std::int64_t dim1 = 0, std::int64_t dim2 = 1);
/// 1-D: the matrix with x on the `offset`-th diagonal and 0 elsewhere. 2-D: a copy of that diagonal.
Tensor diag(const Tensor& x, std::int64_t offset = 0);

/// What `pad` writes outside x: a value, x reflected without its edge, the edge itself, or x repeated.
enum class PadMode : std::uint8_t { kConstant, kReflect, kReplicate, kCircular };
/// Options of pad.
struct PadOptions {
  PadMode mode = PadMode::kConstant;  ///< what is written outside x
  double value = 0;                   ///< for kConstant
};
/// x with pad[0] elements before and pad[1] after the last dimension, pad[2] and pad[3] around the one before, and so
/// on. Negative widths remove elements. kReflect takes widths below the dimension's size, kCircular up to the size.
Tensor pad(const Tensor& x, const std::vector<std::int64_t>& pad, const PadOptions& options = {});

// --- indexing: index tensors are i64 (or i32) ---------------------------------------------------------------------
Tensor where(const Tensor& condition, const Tensor& a, const Tensor& b);
Tensor where(const Tensor& condition, const Tensor& a, const Scalar& b);
Tensor where(const Tensor& condition, const Scalar& a, const Tensor& b);
Tensor where(const Tensor& condition, const Scalar& a, const Scalar& b);
/// x with `value` where the bool tensor `mask` is true. Keeps x's dtype; x and mask broadcast.
Tensor masked_fill(const Tensor& x, const Tensor& mask, const Scalar& value);
/// The matrices (..., m, n) of x, with 0 above the diagonal, or above the `diagonal`-th one to its right.
Tensor tril(const Tensor& x, std::int64_t diagonal = 0);
Tensor triu(const Tensor& x, std::int64_t diagonal = 0);  ///< as tril, with 0 below the diagonal
/// (..., num_classes) i64: 1 at the position that the i64 index names, 0 elsewhere. -1: the largest index + 1 classes.
Tensor one_hot(const Tensor& index, std::int64_t num_classes = -1);
/// Rows index[i] of x along `dim`; index is 1-D.
Tensor index_select(const Tensor& x, std::int64_t dim, const Tensor& index);
/// out[i][j] = x[index[i][j]][j] for dim 0, and so on; out has the shape of index.
Tensor gather(const Tensor& x, std::int64_t dim, const Tensor& index);
/// A copy of x with out[index[i][j]][j] += src[i][j] for dim 0, and so on, added in order of i.
Tensor scatter_add(const Tensor& x, std::int64_t dim, const Tensor& index, const Tensor& src);
/// A copy of x with out[index[i][j]][j] = src[i][j] for dim 0, and so on. Of several elements for one place, CPUs
/// keep the last in order of i, which gets the gradient.
Tensor scatter(const Tensor& x, std::int64_t dim, const Tensor& index, const Tensor& src);
Tensor scatter(const Tensor& x, std::int64_t dim, const Tensor& index, const Scalar& value);
/// A copy of x in which each place holds the "sum", "mean", "prod", "amax" or "amin" of the elements of src that index
/// names for it, in order of i, and of x unless include_self is false. Equal extremes share the gradient.
Tensor scatter_reduce(const Tensor& x, std::int64_t dim, const Tensor& index, const Tensor& src,
                      const std::string& reduce, bool include_self = true);
/// x with alpha src[i] added to its row index[i] along `dim`, in order of i; index is 1-D.
Tensor index_add(const Tensor& x, std::int64_t dim, const Tensor& index, const Tensor& src, const Scalar& alpha = 1);
/// A copy of x whose elements x.index(indices) are `values`, or have them added in order if `accumulate`. `values`
/// broadcasts. Of several values for one element, the last is kept on CPU devices, and gets the gradient.
Tensor index_put(const Tensor& x, const std::vector<TensorIndex>& indices, const Tensor& values,
                 bool accumulate = false);
Tensor nonzero(const Tensor& x);  ///< (count, x.dim()) i64: the positions of the elements that are not 0, in order
/// The elements of x where the bool mask is true, in order, 1-D. x and mask broadcast.
Tensor masked_select(const Tensor& x, const Tensor& mask);
/// The indices of sort(x, dim, descending).
Tensor argsort(const Tensor& x, std::int64_t dim = -1, bool descending = false);
/// Values and i64 indices. The sort is stable; NaN is last (first if descending).
std::pair<Tensor, Tensor> sort(const Tensor& x, std::int64_t dim = -1, bool descending = false);
std::pair<Tensor, Tensor> topk(const Tensor& x, std::int64_t k, std::int64_t dim = -1, bool largest = true);

}  // namespace lockstep
