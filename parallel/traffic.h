// The books of what was moved: every copy between devices and every collective, by link.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "lockstep/tensor/error.h"

namespace lockstep::inline LOCKSTEP_ABI::parallel {

// What a transfer was for: the phases of a data-parallel step.
enum class Phase : std::uint8_t { kOther, kInputs, kParameters, kOutputs, kLossGradient, kGradients, kBuffers };
inline constexpr int kPhaseCount = 7;
const char* name(Phase phase);  // "inputs"

// The sum over all transfers on one link in one phase. Ends are ranks (process groups; -1 - r stands for the GPU of rank
// r, where its tensors are copied to the host and back) or positions in the list of devices (DataParallel).
struct LinkTraffic {
  int from = 0;
  int to = 0;
  Phase phase = Phase::kOther;
  std::int64_t bytes = 0;
  std::int64_t transfers = 0;
};

class TrafficBook {
 public:
  void add(int from, int to, Phase phase, std::int64_t bytes);
  // All links that moved anything, ordered by (from, to, phase).
  const std::vector<LinkTraffic>& links() const { return links_; }
  // The same for the step that was begun last; DataParallel and DistributedDataParallel begin one each time they run.
  const std::vector<LinkTraffic>& step_links() const { return step_links_; }
  std::int64_t steps() const { return steps_; }
  void begin_step();
  std::int64_t bytes() const;
  std::int64_t bytes(Phase phase) const;
  std::int64_t bytes_from(int end) const;
  std::int64_t bytes_to(int end) const;
  void clear() { *this = TrafficBook(); }

 private:
  std::vector<LinkTraffic> links_, step_links_;
  std::int64_t steps_ = 0;
};

}  // namespace lockstep::inline LOCKSTEP_ABI::parallel
