// DataParallel's books. Replicas' threads write them, and backward, which may outlive the DataParallel. Not installed.
#pragma once

#include <algorithm>
#include <mutex>
#include <vector>

#include "lockstep/parallel/comm/traffic.h"
#include "lockstep/parallel/replicated/micro_batch_internal.h"
#include "lockstep/tensor/tensor.h"
#include "lockstep/tensor/trace.h"

namespace lockstep::parallel {

class DeviceBooks {
 public:
  explicit DeviceBooks(std::vector<Device> devices) : devices_(std::move(devices)) {}

  // The end of a link that stands for a device: the first replica there, or one place for all that have none.
  int position(Device device) const { return static_cast<int>(std::ranges::find(devices_, device) - devices_.begin()); }
  // A transfer that is over, and its place in the trace where it began at a known time.
  void add(int from, int to, Phase phase, std::int64_t bytes, TraceTime begin = {}) {
    if (from == to || bytes == 0) return;
    trace_event(TraceKind::kCopy, name(phase), begin,
                {.bytes = bytes, .from = from, .to = to, .phase = static_cast<int>(phase)});
    const std::lock_guard lock(mutex_);
    book_.add(from, to, phase, bytes);
  }
  void begin_step() {
    const std::lock_guard lock(mutex_);
    book_.begin_step();
  }
  TrafficBook& book() { return book_; }

 private:
  std::vector<Device> devices_;
  std::mutex mutex_;
  TrafficBook book_;
};

}  // namespace lockstep::parallel
