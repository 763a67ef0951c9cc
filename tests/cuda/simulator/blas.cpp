// cuBLAS and cuBLASLt: products of column-major matrices, summed in f64.
#include <cublasLt.h>
#include <cublas_v2.h>

#include <algorithm>
#include <array>
#include <memory>

#include "tests/cuda/simulator/numbers.h"
#include "tests/cuda/simulator/simulator.h"

namespace simulator {
namespace {

// Operands in cuBLAS's order: out (m, n) = alpha op(a) (m, k) op(b) (k, n) + beta out + bias (m).
struct Factor {
  const void* data;
  cudaDataType_t type;
  bool transposed;
  std::int64_t stride;  // between columns
  std::int64_t step;    // between problems
};
struct Product {
  std::int64_t m, n, k, batch;
  Factor a, b;
  void* out;
  cudaDataType_t out_type;
  std::int64_t out_stride, out_step;
  double alpha, beta;
  const void* bias;
};

double factor_of(const void* factor, cudaDataType_t type) { return load(factor, type, 0); }

double at(const Factor& f, std::int64_t problem, std::int64_t row, std::int64_t column) {
  if (f.transposed) std::swap(row, column);
  return load(f.data, f.type, problem * f.step + column * f.stride + row);
}

void run(const Product& p) {
  for (std::int64_t problem = 0; problem < p.batch; ++problem) {
    for (std::int64_t column = 0; column < p.n; ++column) {
      for (std::int64_t row = 0; row < p.m; ++row) {
        double sum = 0;
        for (std::int64_t i = 0; i < p.k; ++i) sum += at(p.a, problem, row, i) * at(p.b, problem, i, column);
        const std::int64_t place = problem * p.out_step + column * p.out_stride + row;
        double value = p.alpha * sum;
        if (p.beta != 0) value += p.beta * load(p.out, p.out_type, place);
        if (p.bias) value += load(p.bias, p.out_type, row);
        store(p.out, p.out_type, place, value);
      }
    }
  }
}

bool covers(const void* data, cudaDataType_t type, std::int64_t rows, std::int64_t columns, std::int64_t stride,
            std::int64_t step, std::int64_t batch) {
  if (rows == 0 || columns == 0 || batch == 0) return true;
  const std::int64_t elements = (batch - 1) * step + (columns - 1) * stride + rows;
  return is_device_memory(data, static_cast<std::size_t>(elements) * size_of(type));
}

cublasStatus_t start(const Product& p, cudaStream_t stream) {
  const auto rows = [](const Factor& f, std::int64_t rows, std::int64_t columns) {
    return f.transposed ? columns : rows;
  };
  const std::int64_t a_rows = rows(p.a, p.m, p.k), b_rows = rows(p.b, p.k, p.n);
  if (p.m < 0 || p.n < 0 || p.k < 0 || p.batch < 0 || p.a.stride < std::max<std::int64_t>(1, a_rows) ||
      p.b.stride < std::max<std::int64_t>(1, b_rows) || p.out_stride < std::max<std::int64_t>(1, p.m))
    return CUBLAS_STATUS_INVALID_VALUE;
  if (!covers(p.a.data, p.a.type, a_rows, p.m + p.k - a_rows, p.a.stride, p.a.step, p.batch) ||
      !covers(p.b.data, p.b.type, b_rows, p.n + p.k - b_rows, p.b.stride, p.b.step, p.batch) ||
      !covers(p.out, p.out_type, p.m, p.n, p.out_stride, p.out_step, p.batch) ||
      (p.bias && !covers(p.bias, p.out_type, p.m, 1, p.m, 0, 1)))
    give_up("cuBLAS was given operands that are not memory of a device");
  const cudaError_t status = enqueue(stream, [p] {
    run(p);
    return true;
  });
  return status == cudaSuccess ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_EXECUTION_FAILED;
}

// The entry of a call, as for the runtime: the mutex, the counter, and the failures set by a test.
class BlasCall {
 public:
  explicit BlasCall(const char* function) : lock_(mutex()) {
    ++calls()[function];
    refused_ = static_cast<cublasStatus_t>(take_failure(function));
  }
  cublasStatus_t refused() const { return refused_; }

 private:
  std::lock_guard<std::recursive_mutex> lock_;
  cublasStatus_t refused_;
};
#define ENTER_BLAS()                        \
  const simulator::BlasCall call(__func__); \
  if (call.refused() != CUBLAS_STATUS_SUCCESS) return call.refused()

// The purpose of an algorithm and the alignments that it assumes: an algorithm that Lockstep remembers must fit its
// use.
struct Purpose {
  std::array<std::int64_t, 12> problem;
  std::uint32_t alignment_a, alignment_b, alignment_d;
  bool operator==(const Purpose&) const = default;
};
std::map<std::uint64_t, Purpose>& purposes() {
  static auto* const instance = new std::map<std::uint64_t, Purpose>;
  return *instance;
}

}  // namespace
}  // namespace simulator

struct cublasContext {
  int device;
  cudaStream_t stream;
  void* workspace;
};
struct cublasLtContext {
  int device;
};

namespace {

struct Description : cublasLtMatmulDescOpaque_t {
  cublasComputeType_t compute;
  cudaDataType_t scale;
  cublasOperation_t a = CUBLAS_OP_N, b = CUBLAS_OP_N;
  cublasLtEpilogue_t epilogue = CUBLASLT_EPILOGUE_DEFAULT;
  const void* bias = nullptr;
};
struct Layout : cublasLtMatrixLayoutOpaque_t {
  cudaDataType_t type;
  std::int64_t rows, columns, stride;
};
struct Wish : cublasLtMatmulPreferenceOpaque_t {
  std::uint64_t workspace = 0;
  std::uint32_t a = 256, b = 256, c = 256, d = 256;
};

const Description& of(cublasLtMatmulDesc_t desc) { return *static_cast<const Description*>(desc); }
const Layout& of(cublasLtMatrixLayout_t layout) { return *static_cast<const Layout*>(layout); }

template <class T>
cublasStatus_t take(T& to, const void* from, std::size_t bytes) {
  if (bytes != sizeof(T)) return CUBLAS_STATUS_INVALID_VALUE;
  std::memcpy(&to, from, bytes);
  return CUBLAS_STATUS_SUCCESS;
}

std::array<std::int64_t, 12> problem_of(const Description& d, const Layout& a, const Layout& b, const Layout& out) {
  return {d.a,      d.b,    d.compute, d.epilogue, a.rows,     a.columns,
          a.stride, b.rows, b.columns, b.stride,   out.stride, a.type};
}

bool is_aligned(const void* data, std::uint32_t bytes) { return reinterpret_cast<std::uintptr_t>(data) % bytes == 0; }

}  // namespace

using simulator::factor_of;

// --- handles --------------------------------------------------------------------------------------------------------

const char* cublasGetStatusString(cublasStatus_t status) {
  switch (status) {
    case CUBLAS_STATUS_SUCCESS:
      return "the function succeeded";
    case CUBLAS_STATUS_ALLOC_FAILED:
      return "the resource allocation failed";
    case CUBLAS_STATUS_INVALID_VALUE:
      return "an unsupported value or parameter was passed to the function";
    case CUBLAS_STATUS_NOT_SUPPORTED:
      return "the functionality requested is not supported";
    case CUBLAS_STATUS_EXECUTION_FAILED:
      return "the function failed to launch on the GPU";
    default:
      return "an internal operation failed";
  }
}

cublasStatus_t cublasCreate_v2(cublasHandle_t* handle) {
  ENTER_BLAS();
  if (cudaError_t disturbs = cudaSuccess; (disturbs = cudaFree(nullptr)) != cudaSuccess)  // cuBLAS allocates here
    return CUBLAS_STATUS_ALLOC_FAILED;
  *handle = new cublasContext{simulator::current_device(), nullptr, nullptr};
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasSetStream_v2(cublasHandle_t handle, cudaStream_t stream) {
  ENTER_BLAS();
  handle->stream = stream;
  handle->workspace = nullptr;
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasSetWorkspace_v2(cublasHandle_t handle, void* workspace, std::size_t bytes) {
  ENTER_BLAS();
  if (!simulator::is_device_memory(workspace, bytes)) return CUBLAS_STATUS_INVALID_VALUE;
  handle->workspace = workspace;
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasSetMathMode(cublasHandle_t, cublasMath_t) {
  ENTER_BLAS();
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasGemmStridedBatchedEx_64(cublasHandle_t handle, cublasOperation_t a_operation,
                                             cublasOperation_t b_operation, std::int64_t m, std::int64_t n,
                                             std::int64_t k, const void* alpha, const void* a, cudaDataType a_type,
                                             std::int64_t a_stride, long long a_step, const void* b,
                                             cudaDataType b_type, std::int64_t b_stride, long long b_step,
                                             const void* beta, void* out, cudaDataType out_type,
                                             std::int64_t out_stride, long long out_step, std::int64_t batch,
                                             cublasComputeType_t compute, cublasGemmAlgo_t) {
  ENTER_BLAS();
  if (handle->device != simulator::current_device()) return CUBLAS_STATUS_EXECUTION_FAILED;
  if (!handle->workspace && simulator::is_captured(handle->stream)) return CUBLAS_STATUS_NOT_SUPPORTED;
  const cudaDataType_t scale = compute == CUBLAS_COMPUTE_64F ? CUDA_R_64F : CUDA_R_32F;
  if ((a_type == CUDA_R_64F) != (scale == CUDA_R_64F) || a_type != b_type || a_type != out_type)
    return CUBLAS_STATUS_NOT_SUPPORTED;
  return simulator::start({.m = m,
                           .n = n,
                           .k = k,
                           .batch = batch,
                           .a = {a, a_type, a_operation != CUBLAS_OP_N, a_stride, a_step},
                           .b = {b, b_type, b_operation != CUBLAS_OP_N, b_stride, b_step},
                           .out = out,
                           .out_type = out_type,
                           .out_stride = out_stride,
                           .out_step = out_step,
                           .alpha = factor_of(alpha, scale),
                           .beta = factor_of(beta, scale),
                           .bias = nullptr},
                          handle->stream);
}

// --- cuBLASLt -------------------------------------------------------------------------------------------------------

cublasStatus_t cublasLtCreate(cublasLtHandle_t* handle) {
  ENTER_BLAS();
  *handle = new cublasLtContext{simulator::current_device()};
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulDescCreate(cublasLtMatmulDesc_t* desc, cublasComputeType_t compute, cudaDataType_t scale) {
  ENTER_BLAS();
  auto made = std::make_unique<Description>();
  made->compute = compute;
  made->scale = scale;
  *desc = made.release();
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulDescDestroy(cublasLtMatmulDesc_t desc) {
  ENTER_BLAS();
  delete static_cast<Description*>(desc);
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t desc, cublasLtMatmulDescAttributes_t attribute,
                                              const void* value, std::size_t bytes) {
  ENTER_BLAS();
  auto& to = *static_cast<Description*>(desc);
  switch (attribute) {
    case CUBLASLT_MATMUL_DESC_TRANSA:
      return take(to.a, value, bytes);
    case CUBLASLT_MATMUL_DESC_TRANSB:
      return take(to.b, value, bytes);
    case CUBLASLT_MATMUL_DESC_EPILOGUE:
      return take(to.epilogue, value, bytes);
    case CUBLASLT_MATMUL_DESC_BIAS_POINTER:
      return take(to.bias, value, bytes);
    default:
      return CUBLAS_STATUS_NOT_SUPPORTED;
  }
}

cublasStatus_t cublasLtMatrixLayoutCreate(cublasLtMatrixLayout_t* layout, cudaDataType type, std::uint64_t rows,
                                          std::uint64_t columns, std::int64_t stride) {
  ENTER_BLAS();
  auto made = std::make_unique<Layout>();
  made->type = type;
  made->rows = static_cast<std::int64_t>(rows);
  made->columns = static_cast<std::int64_t>(columns);
  made->stride = stride;
  *layout = made.release();
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatrixLayoutDestroy(cublasLtMatrixLayout_t layout) {
  ENTER_BLAS();
  delete static_cast<Layout*>(layout);
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulPreferenceCreate(cublasLtMatmulPreference_t* wish) {
  ENTER_BLAS();
  *wish = new Wish;
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulPreferenceDestroy(cublasLtMatmulPreference_t wish) {
  ENTER_BLAS();
  delete static_cast<Wish*>(wish);
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulPreferenceSetAttribute(cublasLtMatmulPreference_t wish,
                                                    cublasLtMatmulPreferenceAttributes_t attribute, const void* value,
                                                    std::size_t bytes) {
  ENTER_BLAS();
  auto& to = *static_cast<Wish*>(wish);
  std::uint32_t mask = 0;
  switch (attribute) {
    case CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES:
      return take(to.workspace, value, bytes);
    case CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK:
      return take(mask, value, bytes);
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES:
      return take(to.a, value, bytes);
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES:
      return take(to.b, value, bytes);
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES:
      return take(to.c, value, bytes);
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES:
      return take(to.d, value, bytes);
    default:
      return CUBLAS_STATUS_NOT_SUPPORTED;
  }
}

cublasStatus_t cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t, cublasLtMatmulDesc_t desc, cublasLtMatrixLayout_t a,
                                              cublasLtMatrixLayout_t b, cublasLtMatrixLayout_t c,
                                              cublasLtMatrixLayout_t d, cublasLtMatmulPreference_t wish, int most,
                                              cublasLtMatmulHeuristicResult_t* results, int* found) {
  ENTER_BLAS();
  *found = 0;
  if (c != d || most < 1) return CUBLAS_STATUS_INVALID_VALUE;
  if (of(a).type == CUDA_R_64F) return CUBLAS_STATUS_NOT_SUPPORTED;  // no epilogues for f64
  const auto& wanted = *static_cast<const Wish*>(wish);
  auto& known = simulator::purposes();
  const std::uint64_t number = known.size() + 1;
  known[number] = {problem_of(of(desc), of(a), of(b), of(d)), wanted.a, wanted.b, wanted.d};
  results[0] = {};
  results[0].algo.data[0] = number;
  results[0].state = CUBLAS_STATUS_SUCCESS;
  *found = 1;
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmul(cublasLtHandle_t handle, cublasLtMatmulDesc_t desc, const void* alpha, const void* a,
                              cublasLtMatrixLayout_t a_layout, const void* b, cublasLtMatrixLayout_t b_layout,
                              const void* beta, const void* c, cublasLtMatrixLayout_t, void* d,
                              cublasLtMatrixLayout_t d_layout, const cublasLtMatmulAlgo_t* algorithm, void* workspace,
                              std::size_t workspace_bytes, cudaStream_t stream) {
  ENTER_BLAS();
  const Description& how = of(desc);
  const Layout &left = of(a_layout), &right = of(b_layout), &out = of(d_layout);
  const auto purpose = simulator::purposes().find(algorithm->data[0]);
  if (purpose == simulator::purposes().end() || purpose->second.problem != problem_of(how, left, right, out) ||
      !is_aligned(a, purpose->second.alignment_a) || !is_aligned(b, purpose->second.alignment_b) ||
      !is_aligned(d, purpose->second.alignment_d))
    simulator::give_up("cublasLtMatmul was given an algorithm that was chosen for other operands");
  if (handle->device != simulator::current_device() || c != d || how.epilogue != CUBLASLT_EPILOGUE_BIAS ||
      !simulator::is_device_memory(workspace, workspace_bytes) || !is_aligned(workspace, 256) ||
      !is_aligned(how.bias, 16))
    return CUBLAS_STATUS_INVALID_VALUE;
  const std::int64_t k = how.a == CUBLAS_OP_N ? left.columns : left.rows;
  if (k != (how.b == CUBLAS_OP_N ? right.rows : right.columns) ||
      out.rows != (how.a == CUBLAS_OP_N ? left.rows : left.columns) ||
      out.columns != (how.b == CUBLAS_OP_N ? right.columns : right.rows))
    return CUBLAS_STATUS_INVALID_VALUE;
  return simulator::start({.m = out.rows,
                           .n = out.columns,
                           .k = k,
                           .batch = 1,
                           .a = {a, left.type, how.a != CUBLAS_OP_N, left.stride, 0},
                           .b = {b, right.type, how.b != CUBLAS_OP_N, right.stride, 0},
                           .out = d,
                           .out_type = out.type,
                           .out_stride = out.stride,
                           .out_step = 0,
                           .alpha = factor_of(alpha, how.scale),
                           .beta = factor_of(beta, how.scale),
                           .bias = how.bias},
                          stream);
}
