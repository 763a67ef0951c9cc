// What cuBLAS and cuDNN need for each device and thread: handles, memory to work in, and the algorithms they have chosen.
#pragma once

#include <cublasLt.h>
#include <cublas_v2.h>

#include <array>
#include <cstdint>
#include <optional>
#include <vector>

#include "lockstep/tensor/cuda/algorithm_cache_internal.h"
#include "lockstep/tensor/cuda/runtime_internal.h"

struct cudnnContext;

namespace lockstep::cuda {

// Throws DeviceError with cuBLAS's own text unless `status` is success.
void check_blas(cublasStatus_t status, const char* call);

inline constexpr std::size_t kWorkspaceBytes = 32u << 20;  // what NVIDIA advises for Hopper

// All that a product's choice of algorithm depends on.
using ProductKey = std::array<std::int64_t, 13>;

// All that a convolution's choice depends on, and the choice, best ones first: algorithms of its pass, and the bytes they work
// in.
using ConvolutionKey = std::array<std::int64_t, 18>;
struct ConvolutionWay {
  int algorithm;
  std::size_t workspace;
};

struct Handles {
  cublasHandle_t blas = nullptr;  // on the device's stream
  cublasLtHandle_t lt = nullptr;
  void* workspace = nullptr;  // kWorkspaceBytes; given, since a product in a CUDA graph cannot allocate its own
  AlgorithmCache<ProductKey, std::optional<cublasLtMatmulAlgo_t>> products = {};  // none: there is none
  cudnnContext* dnn = nullptr;                                                    // convolution.cpp's
  AlgorithmCache<ConvolutionKey, std::vector<ConvolutionWay>> convolutions = {};
};

// The calling thread's for its current device; left to other threads at the thread's end. Handles are made on first use, each
// library's by itself, and never destroyed: at the end of a thread, and of the process, the driver may be gone already.
Handles& handles();
// The same with cuBLAS's.
Handles& product_handles();

// The status of create(), which makes a handle in the device's memory; tried again without what freed tensors have left there.
template <class Create>
auto with_memory(Create create) {
  const auto status = create();
  constexpr decltype(create()) kSuccess{};
  if (status == kSuccess || is_capturing()) return status;
  empty_cache(current_device());
  return create();
}

}  // namespace lockstep::cuda
