#include "lockstep/tensor/cuda/handles_internal.h"

#include <map>
#include <memory>
#include <mutex>
#include <utility>

#include "lockstep/base/check_internal.h"

namespace lockstep::cuda {
namespace {

// The handles of threads that have ended, by device.
struct Pool {
  std::mutex mutex;
  std::multimap<int, std::unique_ptr<Handles>> unused;
};
Pool& pool() {
  static Pool* const instance = new Pool;
  return *instance;
}

std::unique_ptr<Handles> take_unused(int device) {
  const std::lock_guard lock(pool().mutex);
  auto node = pool().unused.extract(device);
  return node ? std::move(node.mapped()) : nullptr;
}

// Sets the stream first: cublasSetStream resets the workspace to the default one.
void make_cublas(Handles& own) {
  if (!own.workspace) own.workspace = allocate_unordered(kWorkspaceBytes);
  cublasHandle_t blas = nullptr;
  check_blas(with_memory([&] { return cublasCreate(&blas); }), "cublasCreate");
  check_blas(cublasSetStream(blas, stream()), "cublasSetStream");
  check_blas(cublasSetWorkspace(blas, own.workspace, kWorkspaceBytes), "cublasSetWorkspace");
  check_blas(cublasSetMathMode(blas, CUBLAS_MATH_DISALLOW_REDUCED_PRECISION_REDUCTION), "cublasSetMathMode");
  if (!own.lt) check_blas(cublasLtCreate(&own.lt), "cublasLtCreate");
  own.blas = blas;
}

struct OfThread {
  std::map<int, std::unique_ptr<Handles>> devices;
  ~OfThread() {
    const std::lock_guard lock(pool().mutex);
    pool().unused.merge(devices);
  }
};

}  // namespace

void check_blas(cublasStatus_t status, const char* call) {
  if (status != CUBLAS_STATUS_SUCCESS) [[unlikely]]
    throw DeviceError(fmt::format("cuda:{}: {}: {}", current_device(), call, cublasGetStatusString(status)));
}

Handles& handles() {
  thread_local OfThread own;
  std::unique_ptr<Handles>& found = own.devices[current_device()];
  if (!found) found = take_unused(current_device());
  if (!found) found = std::make_unique<Handles>();
  return *found;
}

Handles& product_handles() {
  Handles& own = handles();
  if (!own.blas) make_cublas(own);
  return own;
}

}  // namespace lockstep::cuda
