// Matrix products: loops of our own for tiny ones and products with a vector, oneDNN for f32 if built in, Eigen
// otherwise. The loops add at most kRowsBetween terms (packets: kSumBlock) before they continue in f64; the wrapper
// splits long sums of the libraries.
#include "lockstep/tensor/kernels/level_internal.h"

#include <Eigen/Core>

#include <utility>

#include "lockstep/tensor/cpu/bf16_product_internal.h"
#include "lockstep/tensor/cpu/loops_internal.h"
#include "lockstep/tensor/cpu/onednn_internal.h"
#include "lockstep/tensor/cpu/packets_internal.h"
#include "lockstep/tensor/kernels/dual_internal.h"

namespace lockstep::LOCKSTEP_KERNELS {

namespace {

constexpr std::int64_t kTinyProduct = 4096;  // multiplications; below, a library call costs more than the work
constexpr std::int64_t kFewTerms = 256;   // terms that a library may add in sequence, oneDNN in products with a vector
constexpr std::int64_t kBlockRows = 128;  // rows of one share of a large product, independent of the number of threads
constexpr std::int64_t kBlockColumns = 192;   // the same of a product with few rows, at least
constexpr std::int64_t kShareFrom = 1 << 22;  // minimum multiplications for several threads

// Columns of one share of a large product with few rows: a quarter of them, or half if the product is smaller, since a
// library packs both operands again for each share; at least kBlockColumns.
std::int64_t block_columns(std::int64_t columns, std::int64_t multiplications) {
  const std::int64_t shares = multiplications >= 4 * kShareFrom ? 4 : 2;
  const std::int64_t share = (columns + 16 * shares - 1) / (16 * shares) * 16;  // registers of columns
  return share > kBlockColumns ? share : kBlockColumns;
}

template <class T>
struct Problem {
  std::int64_t m, n, k;
  const T* a;
  std::int64_t a_row, a_column;
  const T* b;
  std::int64_t b_row, b_column;
  T* out;
  std::int64_t out_row;
};

// out[i][:] = sum over p of a[i][p] b[p][:], in order of p.
template <class T>
void tiny_product(const Problem<T>& g) {
  if (g.n == 1 || g.b_column != 1) {
    for (std::int64_t i = 0; i < g.m; ++i) {
      for (std::int64_t j = 0; j < g.n; ++j) {
        T part = 0;
        double total = 0;
        for (std::int64_t p = 0; p < g.k; ++p) {
          if (p % kRowsBetween == 0 && p > 0) total += static_cast<double>(std::exchange(part, T(0)));
          part += g.a[i * g.a_row + p * g.a_column] * g.b[p * g.b_row + j * g.b_column];
        }
        g.out[i * g.out_row + j] = static_cast<T>(total + static_cast<double>(part));
      }
    }
    return;
  }
  for (std::int64_t i = 0; i < g.m; ++i) {
    T* row = g.out + i * g.out_row;
    double totals[kTinyProduct / kRowsBetween] = {};  // of a row that needs them: n k is at most kTinyProduct
    for (std::int64_t j = 0; j < g.n; ++j) row[j] = 0;
    for (std::int64_t p = 0; p < g.k; ++p) {
      if (p % kRowsBetween == 0 && p > 0) {
        for (std::int64_t j = 0; j < g.n; ++j) totals[j] += static_cast<double>(std::exchange(row[j], T(0)));
      }
      const T factor = g.a[i * g.a_row + p * g.a_column];
      const T* b = g.b + p * g.b_row;
      for (std::int64_t j = 0; j < g.n; ++j) row[j] += factor * b[j];
    }
    if (g.k <= kRowsBetween) continue;
    for (std::int64_t j = 0; j < g.n; ++j) row[j] = static_cast<T>(totals[j] + static_cast<double>(row[j]));
  }
}

// out = a x, a product with a vector: out[i] = sum over p of a[i][p] x[p], where one stride of a is 1.
template <class T>
struct VectorProduct {
  std::int64_t rows, k;
  const T* a;
  std::int64_t a_row, a_column;
  const T* x;
  std::int64_t x_step;
  T* out;
  std::int64_t out_step;

  void run() const { rows > 1 && a_column != 1 ? by_columns() : by_rows(); }

 private:
  // Rows of contiguous elements, a block of kRows at a time, each in the order of sum_packets.
  void by_rows() const {
    if (rows == 1) {
      *out = static_cast<T>(sum_of_shares(k, [this](std::int64_t begin, std::int64_t count) {
        double total = 0;
        add_rows(1, a + begin * a_column, x + begin * x_step, count, &total);
        return total;
      }));
      return;
    }
    for (std::int64_t first = 0; first < rows; first += kRows) {
      const std::int64_t count = rows - first < kRows ? rows - first : kRows;
      double totals[kRows] = {};
      add_rows(count, a + first * a_row, x, k, totals);
      for (std::int64_t i = 0; i < count; ++i) out[(first + i) * out_step] = static_cast<T>(totals[i]);
    }
  }
  void add_rows(std::int64_t count, const T* from, const T* factors, std::int64_t terms, double* totals) const {
    alignas(64) T row_tile[kSumBlock], tile[kSumBlock];
    for (std::int64_t begin = 0; begin < terms; begin += kSumBlock) {
      const std::int64_t length = terms - begin < kSumBlock ? terms - begin : kSumBlock;
      const T* const y = dense(factors + begin * x_step, x_step, length, tile);
      const T* const rows_of_a = dense(from + begin * a_column, a_column, length, row_tile);  // copied if there is one
      std::int64_t i = 0;
      for (; i + kTogether <= count; i += kTogether)
        add_products<kTogether>(rows_of_a + i * a_row, a_row, y, length, totals + i);
      for (; i < count; ++i) add_products<1>(rows_of_a + i * a_row, a_row, y, length, totals + i);
    }
  }
  static const T* dense(const T* from, std::int64_t step, std::int64_t count, T* tile) {
    if (step == 1) return from;
    for (std::int64_t i = 0; i < count; ++i) tile[i] = from[i * step];
    return tile;
  }
  static T fused(T factor, T element, T sum) { return math::multiply_add(factor, element, sum); }
  // Columns of contiguous elements, a block of kColumns rows at a time.
  void by_columns() const {
    for (std::int64_t first = 0; first < rows; first += kColumns) {
      const std::int64_t count = rows - first < kColumns ? rows - first : kColumns;
      alignas(64) T part[kColumns];
      alignas(64) double totals[kColumns];
      for (std::int64_t i = 0; i < count; ++i) totals[i] = 0;
      for (std::int64_t p = 0; p < k;) {
        for (std::int64_t i = 0; i < count; ++i) part[i] = 0;
        const std::int64_t end = p + kRowsBetween < k ? p + kRowsBetween : k;
        for (; p + 4 <= end; p += 4) {
          const T *c0 = a + p * a_column + first, *c1 = c0 + a_column, *c2 = c1 + a_column, *c3 = c2 + a_column;
          const T x0 = x[p * x_step], x1 = x[(p + 1) * x_step], x2 = x[(p + 2) * x_step], x3 = x[(p + 3) * x_step];
          for (std::int64_t i = 0; i < count; ++i)
            part[i] = fused(x3, c3[i], fused(x2, c2[i], fused(x1, c1[i], fused(x0, c0[i], part[i]))));
        }
        for (; p < end; ++p) {
          const T* const column = a + p * a_column + first;
          const T factor = x[p * x_step];
          for (std::int64_t i = 0; i < count; ++i) part[i] = fused(factor, column[i], part[i]);
        }
        for (std::int64_t i = 0; i < count; ++i) totals[i] += static_cast<double>(part[i]);
      }
      for (std::int64_t i = 0; i < count; ++i) out[(first + i) * out_step] = static_cast<T>(totals[i]);
    }
  }
  static constexpr std::int64_t kRows = 64, kColumns = 4096;
  static constexpr int kTogether = kPacketBytes == 64 ? 4 : 2;  // rows whose sums fit the registers
};

// At most kFewTerms at a time: Eigen adds as many in sequence as fit the processor's cache, so that the error, and the
// bits, would depend on it.
template <class T>
void eigen_product(const Problem<T>& g) {
  using RowMajor = Eigen::Matrix<T, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
  using ColumnMajor = Eigen::Matrix<T, Eigen::Dynamic, Eigen::Dynamic, Eigen::ColMajor>;
  using Stride = Eigen::OuterStride<>;
  Eigen::Map<RowMajor, 0, Stride> out(g.out, g.m, g.n, Stride(g.out_row));
  const auto add = [&](const auto& a, const auto& b) {
    out.setZero();
    for (std::int64_t p = 0; p < g.k; p += kFewTerms) {
      const std::int64_t terms = g.k - p < kFewTerms ? g.k - p : kFewTerms;
      out.noalias() += a.middleCols(p, terms) * b.middleRows(p, terms);
    }
  };
  const auto with_a = [&](const auto& a) {
    if (g.b_column == 1)
      add(a, Eigen::Map<const RowMajor, 0, Stride>(g.b, g.k, g.n, Stride(g.b_row)));
    else
      add(a, Eigen::Map<const ColumnMajor, 0, Stride>(g.b, g.k, g.n, Stride(g.b_column)));
  };
  if (g.a_column == 1)
    with_a(Eigen::Map<const RowMajor, 0, Stride>(g.a, g.m, g.k, Stride(g.a_row)));
  else
    with_a(Eigen::Map<const ColumnMajor, 0, Stride>(g.a, g.m, g.k, Stride(g.a_column)));
}

// A stride of a dimension of size 1 is arbitrary; the libraries require a valid leading dimension.
std::int64_t leading(std::int64_t stride, std::int64_t length) { return stride > length ? stride : length; }

template <class T>
void product(const Problem<T>& g) {
  const std::int64_t few = g.m * g.n == 1 ? kRowsBetween : kFewTerms;
  if (g.k > few && g.n == 1)
    return VectorProduct<T>{g.m, g.k, g.a, g.a_row, g.a_column, g.b, g.b_row, g.out, g.out_row}.run();
  if (g.k > few && g.m == 1)
    return VectorProduct<T>{g.n, g.k, g.b, g.b_column, g.b_row, g.a, g.a_column, g.out, 1}.run();
  if (g.m * g.n * g.k <= kTinyProduct) return tiny_product(g);
  if constexpr (std::is_same_v<T, float>) {
    if (cpu::has_onednn()) {
      const bool ta = g.a_column != 1, tb = g.b_column != 1;
      cpu::onednn_sgemm(ta, tb, g.m, g.n, g.k, g.a, ta ? leading(g.a_column, g.m) : leading(g.a_row, g.k), g.b,
                        tb ? leading(g.b_column, g.k) : leading(g.b_row, g.n), g.out, g.out_row);
      return;
    }
  }
  eigen_product(g);
}

template <class T>
void product_with_bias(const Problem<T>& g, const T* bias) {
  product(g);
  if (!bias) return;
  for (std::int64_t i = 0; i < g.m; ++i) {
    T* row = g.out + i * g.out_row;
    for (std::int64_t j = 0; j < g.n; ++j) row[j] += bias[j];
  }
}

}  // namespace

void gemm_workspace(const Gemm& gemm, DType dtype, std::int64_t* elements) {
  *elements = dtype == kBFloat16 ? bf16_workspace(gemm) : dtype == kFloat16 ? -1 : 0;
}

void gemm(const Gemm& gemm, DType dtype) {
  if (dtype == kBFloat16) return bf16_product(gemm);
  for_float(dtype, [&]<class T>(T) {
    const T* bias = as<T>(gemm.bias);
    const bool is_large = gemm.m * gemm.n * gemm.k >= kShareFrom, cuts_rows = is_large && gemm.m >= 2 * kBlockRows;
    const std::int64_t rows = cuts_rows ? kBlockRows : gemm.m;
    const std::int64_t columns = is_large && !cuts_rows ? block_columns(gemm.n, gemm.m * gemm.n * gemm.k) : gemm.n;
    const std::int64_t blocks = (gemm.m + rows - 1) / rows, bands = (gemm.n + columns - 1) / columns;
    const auto run = [&](std::int64_t unit) {
      const std::int64_t left = unit % bands * columns, first = unit / bands % blocks * rows,
                         problem = unit / bands / blocks, inner = problem % gemm.batch;
      const std::int64_t count = gemm.m - first < rows ? gemm.m - first : rows;
      const std::int64_t width = gemm.n - left < columns ? gemm.n - left : columns;
      std::int64_t offsets[] = {inner * gemm.out_step, inner * gemm.a_step, inner * gemm.b_step};
      if (gemm.outer) add_offsets(*gemm.outer, problem / gemm.batch, offsets);
      product_with_bias(
          Problem<T>{count, width, gemm.k, as<T>(gemm.a.data) + offsets[1] + first * gemm.a.row, gemm.a.row,
                     gemm.a.column, as<T>(gemm.b.data) + offsets[2] + left * gemm.b.column, gemm.b.row, gemm.b.column,
                     as<T>(gemm.out.data) + offsets[0] + first * gemm.out.row + left, gemm.out.row},
          bias ? bias + left : nullptr);
    };
    const std::int64_t units = (gemm.outer ? gemm.outer->numel : 1) * gemm.batch * blocks * bands;
    if (units > 1 && units * rows * columns * gemm.k >= kShareFrom)
      for_chunks(units, run);
    else
      for (std::int64_t unit = 0; unit < units; ++unit) run(unit);
  });
}

}  // namespace lockstep::LOCKSTEP_KERNELS
