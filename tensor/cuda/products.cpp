#include "lockstep/tensor/cuda/products_internal.h"

#include <algorithm>
#include <memory>

#include "lockstep/base/check_internal.h"
#include "lockstep/tensor/cuda/handles_internal.h"
#include "lockstep/tensor/tf32.h"

namespace lockstep::cuda {
namespace {

// cuBLAS is column-major: a row-major matrix is its own transpose there.
struct Operand {
  Operand(const Matrix& matrix, std::int64_t rows, std::int64_t columns)
      : transposed(matrix.column != 1 && columns > 1),
        stride(transposed ? std::max(matrix.column, rows) : std::max(matrix.row, columns)) {}
  cublasOperation_t operation() const { return transposed ? CUBLAS_OP_T : CUBLAS_OP_N; }
  bool transposed;
  std::int64_t stride;
};

struct Types {
  explicit Types(DType dtype)
      : wide(dtype == kFloat64), data(wide                 ? CUDA_R_64F
                                      : dtype == kFloat16  ? CUDA_R_16F
                                      : dtype == kBFloat16 ? CUDA_R_16BF
                                                           : CUDA_R_32F),
        scale(wide ? CUDA_R_64F : CUDA_R_32F),
        compute(wide                                  ? CUBLAS_COMPUTE_64F
                : dtype == kFloat32 && tf32_allowed() ? CUBLAS_COMPUTE_32F_FAST_TF32
                                                      : CUBLAS_COMPUTE_32F) {}
  bool wide;
  cudaDataType_t data, scale;
  cublasComputeType_t compute;
};

using Description = Owned<cublasLtMatmulDesc_t, cublasLtMatmulDescDestroy>;
using Layout = Owned<cublasLtMatrixLayout_t, cublasLtMatrixLayoutDestroy>;
using Preference = Owned<cublasLtMatmulPreference_t, cublasLtMatmulPreferenceDestroy>;

Layout layout(cudaDataType_t type, std::int64_t rows, std::int64_t columns, std::int64_t stride) {
  cublasLtMatrixLayout_t made = nullptr;
  check_blas(cublasLtMatrixLayoutCreate(&made, type, static_cast<std::uint64_t>(rows),
                                        static_cast<std::uint64_t>(columns), stride),
             "cublasLtMatrixLayoutCreate");
  return Layout(made);
}

template <class T>
void set(cublasLtMatmulDescOpaque_t& desc, cublasLtMatmulDescAttributes_t attribute, const T& value) {
  check_blas(cublasLtMatmulDescSetAttribute(&desc, attribute, &value, sizeof(value)), "cublasLtMatmulDescSetAttribute");
}
template <class T>
void set(cublasLtMatmulPreferenceOpaque_t& wish, cublasLtMatmulPreferenceAttributes_t attribute, const T& value) {
  check_blas(cublasLtMatmulPreferenceSetAttribute(&wish, attribute, &value, sizeof(value)),
             "cublasLtMatmulPreferenceSetAttribute");
}

// The alignment, up to 256 bytes, the most that algorithms distinguish.
std::uint32_t alignment(const void* data) {
  std::uint32_t bytes = 256;
  while (reinterpret_cast<std::uintptr_t>(data) % bytes != 0) bytes /= 2;
  return bytes;
}

// out^T (n, m) = b^T (n, k) a^T (k, m) + bias (n), as described to cuBLASLt.
struct Problem {
  Problem(const Gemm& g, DType dtype)
      : types(dtype), a(g.a, g.m, g.k), b(g.b, g.k, g.n), out_stride(std::max(g.out.row, g.n)) {
    cublasLtMatmulDesc_t made = nullptr;
    check_blas(cublasLtMatmulDescCreate(&made, types.compute, types.scale), "cublasLtMatmulDescCreate");
    desc.reset(made);
    set(*desc, CUBLASLT_MATMUL_DESC_TRANSA, b.operation());
    set(*desc, CUBLASLT_MATMUL_DESC_TRANSB, a.operation());
    set(*desc, CUBLASLT_MATMUL_DESC_EPILOGUE, CUBLASLT_EPILOGUE_BIAS);
    set(*desc, CUBLASLT_MATMUL_DESC_BIAS_POINTER, g.bias);
    b_layout = layout(types.data, b.transposed ? g.k : g.n, b.transposed ? g.n : g.k, b.stride);
    a_layout = layout(types.data, a.transposed ? g.m : g.k, a.transposed ? g.k : g.m, a.stride);
    out_layout = layout(types.data, g.n, g.m, out_stride);
  }
  ProductKey key(const Gemm& g) const {
    return {g.m,
            g.n,
            g.k,
            a.stride,
            b.stride,
            out_stride,
            a.transposed,
            b.transposed,
            types.data,
            types.compute,
            alignment(g.a.data),
            alignment(g.b.data),
            alignment(g.out.data)};
  }
  Types types;
  Operand a, b;
  std::int64_t out_stride;
  Description desc;
  Layout b_layout, a_layout, out_layout;
};

std::optional<cublasLtMatmulAlgo_t> choose(const Handles& own, const Problem& problem, const Gemm& g) {
  cublasLtMatmulPreference_t made = nullptr;
  check_blas(cublasLtMatmulPreferenceCreate(&made), "cublasLtMatmulPreferenceCreate");
  const Preference wish(made);
  set(*wish, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, std::uint64_t{kWorkspaceBytes});
  // Partial sums of split work stay in the compute type; the "in place" scheme would add them in the result's type.
  set(*wish, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, std::uint32_t{CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE});
  set(*wish, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, alignment(g.b.data));
  set(*wish, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, alignment(g.a.data));
  set(*wish, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, alignment(g.out.data));
  set(*wish, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, alignment(g.out.data));
  cublasLtMatmulHeuristicResult_t result{};
  int found = 0;
  const cublasStatus_t status = cublasLtMatmulAlgoGetHeuristic(
      own.lt, problem.desc.get(), problem.b_layout.get(), problem.a_layout.get(), problem.out_layout.get(),
      problem.out_layout.get(), wish.get(), 1, &result, &found);
  if (status == CUBLAS_STATUS_NOT_SUPPORTED || (status == CUBLAS_STATUS_SUCCESS && found == 0)) return std::nullopt;
  check_blas(status, "cublasLtMatmulAlgoGetHeuristic");
  return result.algo;
}

}  // namespace

void product(const Gemm& g, DType dtype) {
  const Operand a(g.a, g.m, g.k), b(g.b, g.k, g.n);
  const Types types(dtype);
  check_blas(
      cublasGemmStridedBatchedEx_64(product_handles().blas, b.operation(), a.operation(), g.n, g.m, g.k,
                                    factor<1>(types.wide), g.b.data, types.data, b.stride, g.b_step, g.a.data,
                                    types.data, a.stride, g.a_step, factor<0>(types.wide), g.out.data, types.data,
                                    std::max(g.out.row, g.n), g.out_step, g.batch, types.compute, CUBLAS_GEMM_DEFAULT),
      "cublasGemmStridedBatchedEx");
  check_launch("gemm");
}

bool product_with_bias(const Gemm& g, DType dtype) {
  // The epilogue reads the bias 16 bytes at a time; products with vectors have better kernels in cuBLAS.
  if (g.batch != 1 || dtype == kFloat64 || g.n == 1 || g.k == 1 || alignment(g.bias) < 16) return false;
  Handles& own = product_handles();
  const Problem problem(g, dtype);
  const std::optional<cublasLtMatmulAlgo_t>& algorithm =
      own.products.find(problem.key(g), [&] { return choose(own, problem, g); });
  if (!algorithm) return false;
  check_blas(cublasLtMatmul(own.lt, problem.desc.get(), factor<1>(problem.types.wide), g.b.data, problem.b_layout.get(),
                            g.a.data, problem.a_layout.get(), factor<0>(problem.types.wide), g.out.data,
                            problem.out_layout.get(), g.out.data, problem.out_layout.get(), &*algorithm, own.workspace,
                            kWorkspaceBytes, stream()),
             "cublasLtMatmul");
  check_launch("linear");
  return true;
}

}  // namespace lockstep::cuda
