/// \file
/// Random numbers, from a counter-based generator: Philox4x32-10 as cuRAND defines it, the same on every device.
///
/// A draw is a function of (seed, micro-batch, site, call, element). It does not depend on the mode of parallelism, the
/// rank, the thread, or the draws of other sites.
/// - The micro-batch is the calling thread's current micro-batch.
/// - The site is the path of the module whose forward draws, relative to the module that was called
///   ("blocks.0.attention"). All draws outside of modules share one site.
/// - The call is the number of earlier draws at this site and micro-batch since manual_seed. Threads that draw at one
///   site and micro-batch at the same time, such as workers of a DataLoader, take calls in the order in which they run.
/// - The element is the index in the drawn tensor. Where several ranks compute a module together (tensor parallelism), it
///   is the index in the tensor of all ranks: between layers that are cut, `dropout`, `rand`, `randn`, `randint`, `normal`
///   and `bernoulli` draw for this rank's columns, the last dimension (weights of attention for this rank's heads), and
///   throw InvalidArgument for other shapes; with sequence parallelism they draw for this rank's positions, dimension -2.
///   `randperm` and `multinomial`, and draws of other shapes with sequence parallelism, are the same on all these ranks.
/// The seed and the numbers of calls belong to the process, or to the rank if ranks are threads (backends local and
/// sim): init_process_group then gives the calling thread a copy of its own, which its DataParallel replicas and
/// DataLoader workers share, until the thread's last group is destroyed.
///
/// Initial values (nn/init.h) are a function of (seed, number, element), where the number counts the initialisations
/// with random values since manual_seed.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "lockstep/base/error.h"

namespace lockstep {

/// Sets the seed, and resets the number of calls of every site to 0.
void manual_seed(std::uint64_t seed);

namespace random {

/// The current seed, which the last manual_seed or set_state set; initially 0.
std::uint64_t seed();

inline constexpr std::uint64_t kStateFormat = 2;  ///< version of the format of state()
/// The state needed to continue with the same random numbers: kStateFormat, the seed, then site, micro-batch and number
/// of calls for each pair of site and micro-batch that has drawn.
std::vector<std::uint64_t> state();
/// Throws InvalidArgument if `state` is not a result of state().
void check_state(std::span<const std::uint64_t> state);
/// Restores a result of state(). Throws InvalidArgument for any other list.
void set_state(std::span<const std::uint64_t> state);

inline constexpr int kMaxMicroBatches = 1024;  ///< number of micro-batches with their own random numbers
/// The calling thread's micro-batch, 0 without a MicroBatchGuard.
int current_micro_batch();
/// Selects the micro-batch whose random numbers the calling thread draws, for the guard's lifetime.
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
