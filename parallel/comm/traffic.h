/// \file
/// The books of what was moved: every copy between devices and every collective, by link.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "lockstep/tensor/error.h"

namespace lockstep::parallel {

/// What a transfer was for: the phases of a data-parallel step.
enum class Phase : std::uint8_t { kOther, kInputs, kParameters, kOutputs, kLossGradient, kGradients, kBuffers };
inline constexpr int kPhaseCount = 7;  ///< how many there are
const char* name(Phase phase);         ///< "inputs"

/// The sum over all transfers on one link in one phase. Ends are ranks (process groups; -1 - r stands for the GPU of rank
/// r, where its tensors are copied to the host and back) or positions in the list of devices (DataParallel).
struct LinkTraffic {
  int from = 0;                 ///< the sender
  int to = 0;                   ///< the receiver
  Phase phase = Phase::kOther;  ///< of the step
  std::int64_t bytes = 0;       ///< in all
  std::int64_t transfers = 0;   ///< how many
};

/// Counts transfers by link and phase.
class TrafficBook {
 public:
  void add(int from, int to, Phase phase, std::int64_t bytes);  ///< books a transfer
  /// All links that moved anything, ordered by (from, to, phase).
  const std::vector<LinkTraffic>& links() const { return links_; }
  /// The same for the step that was begun last; DataParallel and DistributedDataParallel begin one each time they run.
  const std::vector<LinkTraffic>& step_links() const { return step_links_; }
  std::int64_t steps() const { return steps_; }  ///< how many were begun
  void begin_step();                             ///< empties step_links()
  std::int64_t bytes() const;                    ///< over all links and phases
  std::int64_t bytes(Phase phase) const;         ///< of one phase
  std::int64_t bytes_from(int end) const;        ///< that left `end`
  std::int64_t bytes_to(int end) const;          ///< that reached `end`
  void clear() { *this = TrafficBook(); }        ///< forgets everything

 private:
  std::vector<LinkTraffic> links_, step_links_;
  std::int64_t steps_ = 0;
};

}  // namespace lockstep::parallel
