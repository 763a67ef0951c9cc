#include "lockstep/tensor/cuda/products.h"

#include <cublas_v2.h>

#include <algorithm>
#include <map>
#include <memory>

#include "lockstep/tensor/check_internal.h"
#include "lockstep/tensor/cuda/runtime.h"

namespace lockstep::inline LOCKSTEP_ABI::cuda {
namespace {

void check_blas(cublasStatus_t status, const char* call) {
  if (status != CUBLAS_STATUS_SUCCESS) [[unlikely]]
    throw DeviceError(fmt::format("cuda:{}: {}: {}", current_device(), call, cublasGetStatusString(status)));
}

struct DestroyHandle {
  void operator()(cublasHandle_t handle) const {
    cublasDestroy(handle);
  }  // at the thread's end there is nobody to tell
};
using Handle = std::unique_ptr<std::remove_pointer_t<cublasHandle_t>, DestroyHandle>;

// One a thread and device: they are not to be shared.
cublasHandle_t handle() {
  thread_local std::map<int, Handle> handles;
  Handle& own = handles[current_device()];
  if (!own) {
    cublasHandle_t made = nullptr;
    check_blas(cublasCreate(&made), "cublasCreate");
    own.reset(made);
  }
  check_blas(cublasSetStream(own.get(), stream()), "cublasSetStream");
  return own.get();
}

// cuBLAS counts columns first: a row-major matrix is its own transpose there.
struct Operand {
  Operand(const Matrix& matrix, std::int64_t rows, std::int64_t columns)
      : transposed(matrix.column != 1 && columns > 1),
        stride(transposed ? std::max(matrix.column, rows) : std::max(matrix.row, columns)) {}
  cublasOperation_t operation() const { return transposed ? CUBLAS_OP_T : CUBLAS_OP_N; }
  bool transposed;
  std::int64_t stride;
};

}  // namespace

void product(const Gemm& g, DType dtype) {
  const Operand a(g.a, g.m, g.k), b(g.b, g.k, g.n);
  const bool wide = dtype == kFloat64;
  const double one64 = 1, zero64 = 0;
  const float one32 = 1, zero32 = 0;
  const void* const one = wide ? static_cast<const void*>(&one64) : &one32;
  const void* const zero = wide ? static_cast<const void*>(&zero64) : &zero32;
  const cudaDataType_t type = wide ? CUDA_R_64F : CUDA_R_32F;
  const cublasComputeType_t compute = wide ? CUBLAS_COMPUTE_64F : CUBLAS_COMPUTE_32F;
  check_blas(
      cublasGemmStridedBatchedEx_64(handle(), b.operation(), a.operation(), g.n, g.m, g.k, one, g.b.data, type,
                                    b.stride, g.b_step, g.a.data, type, a.stride, g.a_step, zero, g.out.data, type,
                                    std::max(g.out.row, g.n), g.out_step, g.batch, compute, CUBLAS_GEMM_DEFAULT),
      "cublasGemmStridedBatchedEx");
  check_launch("gemm");
}

}  // namespace lockstep::inline LOCKSTEP_ABI::cuda
