/// \file
/// Statistics of the reductions of gradients, and how much of them overlaps with backward.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "lockstep/base/error.h"

namespace lockstep::parallel {

/// One bucket of gradients. The three times are of the last synchronised step, in seconds since the first gradient of
/// that step was ready, by the clock of the host.
struct BucketStats {
  std::int64_t bytes = 0;                    ///< of its gradients and metadata
  std::vector<std::string> parameters = {};  ///< their names
  double ready = 0;                          ///< all its gradients are ready
  double launched = 0;                       ///< its reduction is launched
  double done = 0;                           ///< this rank has seen that the reduction is complete
};

/// How much of a step's communication was complete before the last gradient of the step was ready, that is, while
/// backward still computed. A bucket counts only if its reduction was complete by then: of a reduction in flight it is
/// not known how much is done. So the shares are lower bounds. With shm and local the ranks' own cores do the reduction,
/// when a gradient becomes ready, so overlap shortens waits but hides no work.
struct CommunicationOverlap {
  double seconds = 0;            ///< during which at least one bucket was launched and not done
  double early_seconds = 0;      ///< the same, of buckets that were done before the last gradient was ready only
  std::int64_t bytes = 0;        ///< of all buckets
  std::int64_t early_bytes = 0;  ///< of the buckets that were done before the last gradient was ready
  /// Share of the seconds, between 0 and 1; 0 if nothing was communicated.
  double share() const { return seconds > 0 ? early_seconds / seconds : 0; }
  /// Share of the bytes, between 0 and 1.
  double byte_share() const { return bytes > 0 ? static_cast<double>(early_bytes) / static_cast<double>(bytes) : 0; }
};
/// The overlap of one step, from the times of its buckets.
CommunicationOverlap communication_overlap(const std::vector<BucketStats>& buckets);

/// Statistics of the reductions so far, and of their overlap with backward.
struct TrainingStats {
  std::vector<BucketStats> buckets;  ///< in the order in which they are launched
  std::int64_t steps = 0;            ///< synchronised
  std::int64_t reduced_bytes = 0;    ///< of buckets, in all steps; the group's traffic() counts what a hook sends
  std::int64_t copies = 0;  ///< gradients copied into their bucket, or (f16, bf16) rounded out of it, in all steps
  /// The shares of communication_overlap in the last synchronised step, in seconds and in bytes. 0 in a group of one,
  /// which communicates nothing, and with nccl, where the host does not know which operations the GPU has completed.
  double overlap = 0, overlap_bytes = 0;

  void take_overlap();  ///< sets the shares, from `buckets`
};

}  // namespace lockstep::parallel
