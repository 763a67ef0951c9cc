// oneDNN's single-precision product, on one thread. Compiled for the baseline: oneDNN dispatches on the processor
// itself.
#pragma once

#include <cstdint>
#include <string>

#include "lockstep/version.h"

namespace lockstep::cpu {

// True if this build has oneDNN.
bool has_onednn();
// "oneDNN 2.6.3", or "no oneDNN".
std::string onednn_version();

// out (m, n) = a (m, k) b (k, n), row-major with the given leading dimensions, a and b transposed on request. Throws
// DeviceError if oneDNN reports a failure.
void onednn_sgemm(bool transpose_a, bool transpose_b, std::int64_t m, std::int64_t n, std::int64_t k, const float* a,
                  std::int64_t lda, const float* b, std::int64_t ldb, float* out, std::int64_t ldc);

}  // namespace lockstep::cpu
