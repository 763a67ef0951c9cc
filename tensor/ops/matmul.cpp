// Matrix products. Operands are read through their strides, aside from large ones whose strides would slow the kernel.
#include <algorithm>
#include <utility>

#include "lockstep/tensor/ops/wrappers_internal.h"

namespace lockstep::raw {

namespace {

void require_factor(const char* op, const Tensor& x) {
  if (!is_half(x.dtype())) require_float(op, x);
}

std::int64_t workspace_of(const Gemm& g, const Tensor& like) {
  std::int64_t elements = 0;
  kernels(like.device()).gemm_workspace(g, like.dtype(), &elements);
  return elements;
}

// True for f16 and bf16 without a kernel: f32 is multiplied, and the sums are rounded once.
bool needs_f32(const Tensor& x) { return is_half(x.dtype()) && workspace_of({}, x) < 0; }

// True if kernels can read the last two dimensions as a matrix: one stride is 1, the other is at least the row length.
bool readable(const Tensor& x) {
  const int d = x.dim();
  const std::int64_t rows = x.shape()[at(d - 2)], columns = x.shape()[at(d - 1)];
  const std::int64_t row = x.strides()[at(d - 2)], column = x.strides()[at(d - 1)];
  const bool row_major = (column == 1 || columns == 1) && (row >= columns || rows == 1);
  const bool column_major = (row == 1 || rows == 1) && (column >= rows || columns == 1);
  return row_major || column_major;
}

// The matrix of the last two dimensions; strides of dimensions of size 1 are made regular.
Matrix matrix(const Tensor& x) {
  void* const data = x.raw_data();
  const int d = x.dim();
  const std::int64_t rows = x.shape()[at(d - 2)], columns = x.shape()[at(d - 1)];
  std::int64_t row = x.strides()[at(d - 2)], column = x.strides()[at(d - 1)];
  if ((column == 1 || columns == 1) && (row >= columns || rows == 1)) {
    column = 1;
    row = rows == 1 ? columns : row;
  } else {
    row = 1;
    column = columns == 1 ? rows : column;
  }
  return {data, row, column};
}

// Libraries sum over k in the operands' type. On CPU devices an f32 sum of more than kLongSum terms is therefore split
// into parts of kPart terms, which are added as `sum` does. Products with a vector sum in f64 in the kernel.
constexpr std::int64_t kPart = 4096, kLongSum = 2 * kPart;

bool is_long(const Gemm& g, const Tensor& out) {
  return g.k > kLongSum && g.m > 1 && g.n > 1 && out.dtype() == kFloat32 && out.device().is_cpu();
}

Matrix moved(const Matrix& x, std::int64_t elements) {
  return {static_cast<float*>(x.data) + elements, x.row, x.column};
}

// A product with long sums, part of `whole`. It has no batch and no bias, and its result is contiguous.
void run_parts(Gemm g, const Tensor& whole) {
  const KernelTable& table = kernels(whole.device());
  const std::int64_t parts = g.k / kPart, rest = g.k % kPart, elements = g.m * g.n;
  const Tensor products = empty({parts + (rest > 0), elements}, whole.options());
  void* const result = std::exchange(g.out.data, products.raw_data());
  g.a_step = kPart * g.a.column, g.b_step = kPart * g.b.row, g.out_step = elements;
  g.k = kPart, g.batch = parts;
  table.gemm(g, kFloat32);
  if (rest > 0) {
    g.a = moved(g.a, parts * g.a_step), g.b = moved(g.b, parts * g.b_step), g.out = moved(g.out, parts * g.out_step);
    g.k = rest, g.batch = 1;
    table.gemm(g, kFloat32);
  }
  const Rows rows{.outer = 1, .n = products.shape()[0], .inner = elements};
  table.sum(products.raw_data(), result, rows, kFloat32, 1.0);
}

void multiply(Gemm g, const Tensor& out) {
  Tensor workspace;
  if (const std::int64_t elements = is_half(out.dtype()) ? workspace_of(g, out) : 0; elements > 0) {
    workspace = empty({elements}, {.dtype = kFloat32, .device = out.device()});
    g.workspace = workspace.raw_data();
  }
  kernels(out.device()).gemm(g, out.dtype());
}

// out (m, n) = a (m, k) b (k, n)
void run(const Tensor& a, const Tensor& b, const Tensor& out) {
  const std::int64_t m = a.shape()[at(a.dim() - 2)], k = a.shape()[at(a.dim() - 1)], n = b.shape()[at(b.dim() - 1)];
  if (m == 0 || n == 0) return;
  if (k == 0) return fill(out, 0);
  const Gemm gemm{.m = m, .n = n, .k = k, .a = matrix(a), .b = matrix(b), .out = {out.raw_data(), n, 1}};
  is_long(gemm, out) ? run_parts(gemm, out) : multiply(gemm, out);
}

// Shapes as in NumPy's matmul: a vector on the left is a row, on the right a column; its dimension is removed
// afterwards.
struct Operands {
  Tensor a, b;  // at least 2-D
  Shape batch;  // broadcast leading dimensions
  Shape out;    // shape of the result
};

Operands prepare(const Tensor& a, const Tensor& b) {
  LOCKSTEP_CHECK(a.dim() > 0 && b.dim() > 0, "matmul: needs at least one dimension on each side: a is {}, b is {}",
                 describe(a), describe(b));
  require_same("matmul", a, b);
  if (!is_integer(a.dtype())) require_factor("matmul", a);
  Operands p{a.dim() == 1 ? unsqueeze(a, 0) : a, b.dim() == 1 ? unsqueeze(b, 1) : b, {}, {}};
  LOCKSTEP_CHECK(p.a.size(-1) == p.b.size(-2), "matmul: inner sizes differ: a is {}, b is {}", describe(a),
                 describe(b));
  Shape a_batch, b_batch;
  for (int i = 0; i < p.a.dim() - 2; ++i) a_batch.push_back(p.a.shape()[at(i)]);
  for (int i = 0; i < p.b.dim() - 2; ++i) b_batch.push_back(p.b.shape()[at(i)]);
  p.batch = broadcast_shapes("matmul", a_batch, b_batch);
  p.out = p.batch;
  if (a.dim() > 1) p.out.push_back(p.a.size(-2));
  if (b.dim() > 1) p.out.push_back(p.b.size(-1));
  return p;
}

// One kernel call for all products; a and b broadcast over the batch dimensions.
void run_batched(const Operands& p, const Tensor& out) {
  const Dense dense_a(p.a, readable(p.a)), dense_b(p.b, readable(p.b));
  const Tensor &a = *dense_a, &b = *dense_b;
  if (out.numel() == 0) return;
  if (a.dim() > 2 && b.dim() == 2 && a.is_contiguous()) {  // one tall product
    return run(reshape(a, {p.batch.numel() * a.size(-2), a.size(-1)}), b, out);
  }
  if (p.batch.empty()) return run(a, b, out);
  if (a.size(-1) == 0) return fill(out, 0);
  Gemm g{};
  g.m = a.size(-2), g.n = b.size(-1), g.k = a.size(-1);
  g.a = matrix(a), g.b = matrix(b), g.out = {out.raw_data(), g.n, 1};
  const Strides out_steps = contiguous_strides(p.batch);
  Loop<3> batch;
  set_dims(batch, p.batch, [&](int k, int d) {
    return k == 0 ? out_steps[at(d)] * g.m * g.n : broadcast_stride((k == 1 ? a : b).impl(), d, p.batch.dim() + 2);
  });
  if (is_long(g, out)) {
    for (std::int64_t i = 0; i < batch.numel; ++i) {
      std::int64_t offsets[3] = {};
      add_offsets(batch, i, offsets);
      Gemm one = g;
      one.out = moved(g.out, offsets[0]), one.a = moved(g.a, offsets[1]), one.b = moved(g.b, offsets[2]);
      run_parts(one, out);
    }
    return;
  }
  const int inner = --batch.dims;  // the kernel's own batch dimension; the others remain
  g.batch = batch.shape[inner];
  g.out_step = batch.strides[0][inner], g.a_step = batch.strides[1][inner], g.b_step = batch.strides[2][inner];
  batch.numel /= g.batch;
  if (inner > 0) g.outer = &batch;
  multiply(g, out);
}

// Integers, for which there is no kernel: the sum of the products of a's columns with b's rows, in blocks of k that
// bound the memory. Sums wrap, as in PyTorch.
Tensor integer_product(const Operands& p) {
  Shape shape = p.batch;
  shape.push_back(p.a.size(-2)), shape.push_back(p.b.size(-1));
  const Tensor out = zeros(shape, p.a.options());
  const std::int64_t k = p.a.size(-1), block = std::max<std::int64_t>((1 << 16) / (out.numel() + 1), 1);
  for (std::int64_t start = 0; start < k; start += block) {
    const Tensor columns = unsqueeze(slice(p.a, -1, start, start + block, 1), -1);
    const Tensor rows = unsqueeze(slice(p.b, -2, start, start + block, 1), -3);
    add_(out, sum(mul(columns, rows), {-2}));
  }
  return reshape(out, p.out);
}

}  // namespace

Tensor matmul(const Tensor& a, const Tensor& b) {
  if (is_integer(a.dtype())) return integer_product(prepare(a, b));
  if (needs_f32(a)) {
    require_same("matmul", a, b);
    return to(matmul(widened(a), widened(b)), a.dtype());
  }
  if (a.dim() == 2 && b.dim() == 2) {
    require_same("matmul", a, b);
    require_factor("matmul", a);
    LOCKSTEP_CHECK(a.shape()[1] == b.shape()[0], "matmul: inner sizes differ: a is {}, b is {}", describe(a),
                   describe(b));
    Tensor out = empty({a.shape()[0], b.shape()[1]}, a.options());
    run(*Dense(a, readable(a)), *Dense(b, readable(b)), out);
    return out;
  }
  const Operands p = prepare(a, b);
  Tensor out = empty(p.out, a.options());
  run_batched(p, out);
  return out;
}

void matmul_out(const Tensor& a, const Tensor& b, const Tensor& out) {
  const Operands p = prepare(a, b);
  require_same("matmul", a, out);
  LOCKSTEP_CHECK(out.shape() == p.out && out.is_contiguous(), "matmul: the result has shape {}, the output is {}",
                 p.out.to_string(), describe(out));
  if (needs_f32(a)) return copy(matmul(a, b), out);
  run_batched(p, out);
}

Tensor linear(const Tensor& x, const Tensor& weight, const Tensor& bias) {
  require_same("linear", x, weight);
  require_factor("linear", x);
  LOCKSTEP_CHECK(weight.dim() == 2, "linear: weight must be (out, in), got {}", describe(weight));
  LOCKSTEP_CHECK(x.dim() >= 1 && x.shape().back() == weight.shape()[1],
                 "linear: inner sizes differ: x is {}, weight is {}", describe(x), describe(weight));
  if (bias.defined()) {
    require_same("linear", x, bias);
    LOCKSTEP_CHECK(bias.dim() == 1 && bias.shape()[0] == weight.shape()[0], "linear: bias is {}, weight is {}",
                   describe(bias), describe(weight));
  }
  if (needs_f32(x)) return to(linear(widened(x), widened(weight), widened(bias)), x.dtype());
  Shape shape = x.shape();
  shape[shape.size() - 1] = weight.shape()[0];
  Tensor out = empty(shape, x.options());
  const std::int64_t k = weight.shape()[1], n = weight.shape()[0];
  if (out.numel() == 0) return out;
  if (k == 0) {
    if (bias.defined())
      copy(bias, out);
    else
      fill(out, 0);
    return out;
  }
  // Leading dimensions of x are one batch of rows; the weight is read as its transpose.
  const Dense rows(x, x.dim() == 2 ? readable(x) : x.is_contiguous()), w(weight, readable(weight));
  const Dense dense_bias(bias);
  const Matrix own = matrix(*w);
  Gemm gemm{.m = out.numel() / n,
            .n = n,
            .k = k,
            .a = x.dim() == 2 ? matrix(*rows) : Matrix{rows.data(), k, 1},
            .b = {own.data, own.column, own.row},
            .out = {out.raw_data(), n, 1},
            .bias = dense_bias.data()};
  if (is_long(gemm, out)) {
    gemm.bias = nullptr;
    run_parts(gemm, out);
    if (bias.defined()) add_(out, bias);
    return out;
  }
  multiply(gemm, out);
  return out;
}

}  // namespace lockstep::raw
