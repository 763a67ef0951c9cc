/// \file
/// Traffic counters: the bytes of all copies between devices and of all collectives, by link.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "lockstep/base/error.h"

namespace lockstep::parallel {

/// The phases of a step. Transfers are counted by phase.
enum class Phase : std::uint8_t {
  kOther,
  kInputs,
  kParameters,
  kOutputs,
  kLossGradient,
  kGradients,
  kBuffers,
  kOffload,
  kKeysValues,           ///< of other sequence blocks
  kActivations,          ///< of layers that several ranks compute together
  kActivationGradients,  ///< of these, and of keys and values
};
inline constexpr int kPhaseCount = 11;  ///< number of phases
const char* name(Phase phase);          ///< for example "inputs"

/// The sum over all transfers on one link in one phase. Sender and receiver are ranks as the group of
/// init_process_group numbers them, also in the counters of a group that `split` or a DeviceMesh has made (-1 - r stands
/// for the GPU of rank r, if its tensors are copied to the host and back), or positions in DataParallel's list of
/// devices.
struct LinkTraffic {
  int from = 0;                 ///< the sender
  int to = 0;                   ///< the receiver
  Phase phase = Phase::kOther;  ///< of the step
  std::int64_t bytes = 0;       ///< total
  std::int64_t transfers = 0;   ///< number of transfers
};

/// Counts transfers by link and phase, since the beginning and in the last step.
///
/// A step of a training mode begins with the first forward after the end of the previous step: a call of operator()
/// while gradients are recorded, or of backward(x, y, loss_fn). It ends when a backward outside no_sync has returned
/// (autograd::grad is none), or with an exception in a call of the mode or in a backward from its results. So several
/// forwards before one backward are one step, and what no_sync accumulates belongs to the step that follows. What is
/// sent between two steps, by evaluate or clip_grad_norm_, is counted with the step before. Models that share counters
/// share steps: those in one backward have one.
class TrafficStats {
 public:
  void add(int from, int to, Phase phase, std::int64_t bytes);  ///< counts a transfer
  void add(const LinkTraffic& link);                            ///< adds its bytes and transfers, if there are any
  void add(const TrafficStats& other);  ///< adds the links of other counters, not their number of steps
  /// All links with traffic, ordered by (from, to, phase).
  const std::vector<LinkTraffic>& links() const { return links_; }
  /// Links with traffic since the last step began.
  const std::vector<LinkTraffic>& step_links() const { return step_links_; }
  std::int64_t steps() const { return steps_; }  ///< number of steps that have begun
  void begin_step();                             ///< empties step_links()
  void open_step();                              ///< begin_step(), unless a step is open
  void close_step() { is_open_ = false; }        ///< ends the step that open_step has begun
  std::int64_t bytes() const;                    ///< over all links and phases
  std::int64_t bytes(Phase phase) const;         ///< of one phase
  std::int64_t bytes_from(int end) const;        ///< sent by `end`
  std::int64_t bytes_to(int end) const;          ///< received by `end`
  void clear() { *this = TrafficStats(); }       ///< resets all counters

 private:
  std::vector<LinkTraffic> links_, step_links_;
  std::int64_t steps_ = 0;
  bool is_open_ = false;  // a step
};

}  // namespace lockstep::parallel
