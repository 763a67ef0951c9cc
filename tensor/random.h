/// \file
/// Counter-based random numbers: Philox4x32-10 as cuRAND defines it, so that one seed gives one stream on every device.
///
/// A stream is (seed, micro-batch, purpose, counter). Initialisation, permutations and user calls have streams of their
/// own. The micro-batch is the calling thread's current one, so that its random numbers do not depend on which rank or
/// thread runs it.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "lockstep/tensor/error.h"

namespace lockstep {

/// Sets the seed and restarts every stream.
void manual_seed(std::uint64_t seed);

namespace random {

/// The purpose of a random number. Each purpose has its own stream, so that draws for one do not shift another.
enum class Stream : std::uint8_t { kUser, kInit, kPermutation, kDropout };
inline constexpr int kStreamCount = 4;  ///< number of streams

/// The start of a draw: element i of a kernel uses counter block i / 4, word i % 4.
struct Position {
  std::uint64_t seed;    ///< the key
  std::uint64_t stream;  ///< upper half of the counter: micro-batch and purpose
  std::uint64_t offset;  ///< lower half of the counter: the first block
  /// In a CUDA graph: the copy of the position in device memory, which kernels read instead.
  const Position* on_device = nullptr;
};

/// Reserves `blocks` counter blocks (of four 32-bit words) of the current micro-batch's stream.
Position reserve(Stream stream, std::uint64_t blocks);

/// The state needed to continue with the same numbers: the seed, then micro-batch, stream and offset of every stream
/// that was used.
std::vector<std::uint64_t> state();
/// Restores a result of state(). Throws InvalidArgument for any other list.
void set_state(std::span<const std::uint64_t> state);

inline constexpr int kMaxMicroBatches = 1024;  ///< number of micro-batches with streams
/// The calling thread's micro-batch, 0 without a MicroBatchGuard.
int current_micro_batch();
/// Selects the micro-batch whose streams the calling thread uses, for the guard's lifetime.
class MicroBatchGuard {
 public:
  explicit MicroBatchGuard(int micro_batch);
  ~MicroBatchGuard();
  MicroBatchGuard(const MicroBatchGuard&) = delete;
  MicroBatchGuard& operator=(const MicroBatchGuard&) = delete;

 private:
  int previous_;
};

}  // namespace random
}  // namespace lockstep
