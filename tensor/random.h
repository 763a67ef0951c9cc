// Counter-based random numbers: Philox4x32-10 as cuRAND defines it, so that one seed gives one stream on every device.
//
// A stream is (seed, micro-batch, purpose, counter). Initialisation, permutations and user calls have streams of
// their own, and the micro-batch is the calling thread's current one, so that what a micro-batch draws does not
// depend on who runs it.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "lockstep/tensor/error.h"

namespace lockstep {

// Sets the seed and starts every stream again.
void manual_seed(std::uint64_t seed);

namespace random {

// What a random number is for: each purpose has a stream of its own, so that one does not shift another.
enum class Stream : std::uint8_t { kUser, kInit, kPermutation, kDropout };
inline constexpr int kStreamCount = 4;  // how many there are

// Where a draw starts: pass it to a kernel, element i uses counter block i / 4, word i % 4.
struct Position {
  std::uint64_t seed;    // the key
  std::uint64_t stream;  // upper half of the counter: micro-batch and purpose
  std::uint64_t offset;  // lower half of the counter: the first block
  // In a CUDA graph: kernels find the position there, in the device's memory, instead of here.
  const Position* moving = nullptr;
};

// Reserves `blocks` counter blocks (of four 32-bit words) of the current micro-batch's stream.
Position reserve(Stream stream, std::uint64_t blocks);

// Everything needed to go on with the same numbers: the seed, then micro-batch, stream and offset of every stream
// that drew.
std::vector<std::uint64_t> state();
// Throws InvalidArgument for a list that `state` did not make.
void set_state(std::span<const std::uint64_t> state);

inline constexpr int kMaxMicroBatches = 1024;  // micro-batches that may have streams
// The calling thread's micro-batch, 0 unless a MicroBatchGuard says otherwise.
int current_micro_batch();
// Makes the calling thread draw from a micro-batch's streams while it lives.
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
