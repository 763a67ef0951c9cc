// What cuBLAS needs for each device and thread: handles, and memory to work in.
#pragma once

#include <cublasLt.h>
#include <cublas_v2.h>

#include <array>
#include <cstdint>
#include <map>
#include <optional>

#include "lockstep/tensor/cuda/runtime.h"

namespace lockstep::inline LOCKSTEP_ABI::cuda {

// Throws DeviceError with cuBLAS's own text unless `status` is success.
void check_blas(cublasStatus_t status, const char* call);

inline constexpr std::size_t kWorkspaceBytes = 32u << 20;  // what NVIDIA advises for Hopper

// All that a product's choice of algorithm depends on.
using ProductKey = std::array<std::int64_t, 13>;

struct Handles {
  cublasHandle_t blas = nullptr;  // on the device's stream
  cublasLtHandle_t lt = nullptr;
  void* workspace = nullptr;  // kWorkspaceBytes; given, since a product in a CUDA graph cannot allocate its own
  std::map<ProductKey, std::optional<cublasLtMatmulAlgo_t>> algorithms =
      {};  // those that were chosen; none: there is none
};

// The calling thread's for its current device. They are made on first use, and left to other threads at the thread's end.
Handles& handles();

}  // namespace lockstep::inline LOCKSTEP_ABI::cuda
