// Matrix products: a plain loop for tiny ones, oneDNN for f32 if built in, Eigen otherwise.
#include "lockstep/tensor/level_internal.h"

#include <Eigen/Core>

#include "lockstep/tensor/cpu/loops_internal.h"
#include "lockstep/tensor/cpu/onednn_internal.h"

namespace lockstep::LOCKSTEP_KERNELS {

namespace {

constexpr std::int64_t kTinyProduct = 4096;  // multiplications; below, a library call costs more than the work
constexpr std::int64_t kBlockRows = 128;  // rows of one share of a large product, independent of the number of threads
constexpr std::int64_t kShareFrom = 1 << 22;  // minimum multiplications for several threads

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
        T total = 0;
        for (std::int64_t p = 0; p < g.k; ++p)
          total += g.a[i * g.a_row + p * g.a_column] * g.b[p * g.b_row + j * g.b_column];
        g.out[i * g.out_row + j] = total;
      }
    }
    return;
  }
  for (std::int64_t i = 0; i < g.m; ++i) {
    T* row = g.out + i * g.out_row;
    for (std::int64_t j = 0; j < g.n; ++j) row[j] = 0;
    for (std::int64_t p = 0; p < g.k; ++p) {
      const T factor = g.a[i * g.a_row + p * g.a_column];
      const T* b = g.b + p * g.b_row;
      for (std::int64_t j = 0; j < g.n; ++j) row[j] += factor * b[j];
    }
  }
}

template <class T>
void eigen_product(const Problem<T>& g) {
  using RowMajor = Eigen::Matrix<T, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
  using ColumnMajor = Eigen::Matrix<T, Eigen::Dynamic, Eigen::Dynamic, Eigen::ColMajor>;
  using Stride = Eigen::OuterStride<>;
  Eigen::Map<RowMajor, 0, Stride> out(g.out, g.m, g.n, Stride(g.out_row));
  const auto with_a = [&](const auto& a) {
    if (g.b_column == 1)
      out.noalias() = a * Eigen::Map<const RowMajor, 0, Stride>(g.b, g.k, g.n, Stride(g.b_row));
    else
      out.noalias() = a * Eigen::Map<const ColumnMajor, 0, Stride>(g.b, g.k, g.n, Stride(g.b_column));
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

void gemm(const Gemm& gemm, DType dtype) {
  for_float(dtype, [&]<class T>(T) {
    const T* bias = as<T>(gemm.bias);
    const bool cut = gemm.m >= 2 * kBlockRows && gemm.m * gemm.n * gemm.k >= kShareFrom;
    const std::int64_t rows = cut ? kBlockRows : gemm.m;
    const std::int64_t blocks = cut ? (gemm.m + rows - 1) / rows : 1;
    const auto run = [&](std::int64_t unit) {
      const std::int64_t problem = unit / blocks, first = unit % blocks * rows, inner = problem % gemm.batch;
      const std::int64_t count = gemm.m - first < rows ? gemm.m - first : rows;
      std::int64_t offsets[] = {inner * gemm.out_step, inner * gemm.a_step, inner * gemm.b_step};
      if (gemm.outer) add_offsets(*gemm.outer, problem / gemm.batch, offsets);
      product_with_bias(
          Problem<T>{count, gemm.n, gemm.k, as<T>(gemm.a.data) + offsets[1] + first * gemm.a.row, gemm.a.row,
                     gemm.a.column, as<T>(gemm.b.data) + offsets[2], gemm.b.row, gemm.b.column,
                     as<T>(gemm.out.data) + offsets[0] + first * gemm.out.row, gemm.out.row},
          bias);
    };
    const std::int64_t units = (gemm.outer ? gemm.outer->numel : 1) * gemm.batch * blocks;
    if (units > 1 && units * rows * gemm.n * gemm.k >= kShareFrom)
      for_chunks(units, run);
    else
      for (std::int64_t unit = 0; unit < units; ++unit) run(unit);
  });
}

}  // namespace lockstep::LOCKSTEP_KERNELS
