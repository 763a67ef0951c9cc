// DataParallel's traffic counters. The replicas' threads write them, and backward, which may outlive the DataParallel.
// Each replica has counters of its own, so that its thread waits for no other's cache line. Not installed.
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
  explicit DeviceTraffic(std::vector<Device> devices) : devices_(std::move(devices)), replicas_(devices_.size()) {}

  // The position of a device in a link: that of its first replica, or the number of devices if it has none.
  int position(Device device) const { return static_cast<int>(std::ranges::find(devices_, device) - devices_.begin()); }
  // Counts a completed transfer of `replica` and traces it, from `begin` if that is known.
  void add(int replica, int from, int to, Phase phase, std::int64_t bytes, TraceTime begin = {}) {
    if (from == to || bytes == 0) return;
    trace_event(TraceKind::kCopy, name(phase), begin,
                {.bytes = bytes, .from = from, .to = to, .phase = static_cast<int>(phase)});
    Replica& own = replicas_[static_cast<std::size_t>(replica)];
    const std::lock_guard lock(own.mutex);
    const auto same = std::ranges::find_if(
        own.links, [&](const LinkTraffic& link) { return link.from == from && link.to == to && link.phase == phase; });
    LinkTraffic& link = same == own.links.end() ? own.links.emplace_back(LinkTraffic{from, to, phase}) : *same;
    link.bytes += bytes;
    ++link.transfers;
  }
  void open_step() {
    const std::lock_guard lock(mutex_);
    collect();
    stats_.open_step();
  }
  void close_step() {
    const std::lock_guard lock(mutex_);
    collect();
    stats_.close_step();
  }
  TrafficStats& stats() {
    const std::lock_guard lock(mutex_);
    collect();
    return stats_;
  }

 private:
  struct alignas(64) Replica {
    std::mutex mutex;
    std::vector<LinkTraffic> links;  // what is not in stats_ yet
  };
  void collect() {
    for (Replica& each : replicas_) {
      const std::lock_guard lock(each.mutex);
      for (LinkTraffic& link : each.links) {
        stats_.add(link);
        link.bytes = link.transfers = 0;
      }
    }
  }

  std::vector<Device> devices_;
  std::vector<Replica> replicas_;
  std::mutex mutex_;
  TrafficStats stats_;
};

}  // namespace lockstep::parallel
