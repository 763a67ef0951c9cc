// DataParallel's traffic counters. The replicas' threads write them, and backward, which may outlive the DataParallel.
// Not installed.
#pragma once

#include <algorithm>
#include <mutex>
#include <vector>

#include "lockstep/base/trace.h"
#include "lockstep/parallel/comm/traffic.h"
#include "lockstep/parallel/step/micro_batch_internal.h"
#include "lockstep/tensor/tensor.h"

namespace lockstep::parallel {

class DeviceTraffic {
 public:
  explicit DeviceTraffic(std::vector<Device> devices) : devices_(std::move(devices)) {}

  // The position of a device in a link: that of its first replica, or the number of devices if it has none.
  int position(Device device) const { return static_cast<int>(std::ranges::find(devices_, device) - devices_.begin()); }
  // Counts a completed transfer and traces it, from `begin` if that is known.
  void add(int from, int to, Phase phase, std::int64_t bytes, TraceTime begin = {}) {
    if (from == to || bytes == 0) return;
    trace_event(TraceKind::kCopy, name(phase), begin,
                {.bytes = bytes, .from = from, .to = to, .phase = static_cast<int>(phase)});
    const std::lock_guard lock(mutex_);
    stats_.add(from, to, phase, bytes);
  }
  void open_step() {
    const std::lock_guard lock(mutex_);
    stats_.open_step();
  }
  void close_step() {
    const std::lock_guard lock(mutex_);
    stats_.close_step();
  }
  TrafficStats& stats() { return stats_; }

 private:
  std::vector<Device> devices_;
  std::mutex mutex_;
  TrafficStats stats_;
};

}  // namespace lockstep::parallel
