// State of cuBLAS and cuDNN for each device and thread: handles, workspace, and the chosen algorithms.
#pragma once

#include <cublasLt.h>
#include <cublas_v2.h>

#include <array>
#include <cstdint>
#include <optional>
#include <tuple>
#include <vector>

#include "lockstep/tensor/cuda/algorithm_cache_internal.h"
#include "lockstep/tensor/cuda/runtime_internal.h"
#include "lockstep/tensor/ops/image_ops_internal.h"

struct cudnnContext;

namespace lockstep::cuda {

// Throws DeviceError with cuBLAS's own text unless `status` is success.
void check_blas(cublasStatus_t status, const char* call);

// 1 and 0 as factors of a result: f64 for f64 (`wide`), otherwise f32.
template <int kValue>
const void* factor(bool wide) {
  static constexpr double kWide = kValue;
  static constexpr float kNarrow = kValue;
  return wide ? static_cast<const void*>(&kWide) : &kNarrow;
}

inline constexpr std::size_t kWorkspaceBytes = 32u << 20;  // NVIDIA's recommendation for Hopper

// Everything that the choice of a product's algorithm depends on.
using ProductKey = std::array<std::int64_t, 13>;

// Everything that the choice of a convolution's algorithm depends on; the candidates of one pass, best first, with
// their workspace in bytes.
using ConvolutionKey = std::tuple<raw::ConvolutionPass, DType, std::array<std::int64_t, 16>>;
struct ConvolutionWay {
  int algorithm;
  std::size_t workspace;
};

struct Handles {
  cublasHandle_t blas = nullptr;  // uses the device's stream
  cublasLtHandle_t lt = nullptr;
  void* workspace = nullptr;  // kWorkspaceBytes; ours, since a product in a CUDA graph cannot allocate its own
  AlgorithmCache<ProductKey, std::optional<cublasLtMatmulAlgo_t>> products = {};  // nullopt: no algorithm
  cudnnContext* dnn = nullptr;                                                    // used by convolution.cpp
  AlgorithmCache<ConvolutionKey, std::vector<ConvolutionWay>> convolutions = {};
};

// The calling thread's handles for its current device; at the thread's end another thread may take them over. Each
// library's handle is created on first use and never destroyed: at the end of a thread or process the driver may be
// gone already.
Handles& handles();
// The same, with the cuBLAS handle created.
Handles& product_handles();

// Calls create(), which makes a handle in the device's memory, and returns its status; if memory is short, releases
// the cache and tries again.
template <class Create>
auto with_memory(Create create) {
  const auto status = create();
  constexpr decltype(create()) kSuccess{};
  if (status == kSuccess || is_capturing()) return status;
  empty_cache(current_device());
  return create();
}

}  // namespace lockstep::cuda
