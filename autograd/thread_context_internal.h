// Contexts of a thread that nodes store.
#pragma once

#include "lockstep/base/error.h"

namespace lockstep::autograd {

// A node stores the replica context of its recording thread, and backward restores it. The pointer is opaque here; nn
// points it to a ReplicaView. Null by default.
const void* replica_context();
void set_replica_context(const void* context);

bool anomaly_mode();  // whether the thread has an AnomalyGuard
// Sets the anomaly mode of this thread while it exists.
class AnomalyModeGuard {
 public:
  explicit AnomalyModeGuard(bool on);
  ~AnomalyModeGuard();
  AnomalyModeGuard(const AnomalyModeGuard&) = delete;
  AnomalyModeGuard& operator=(const AnomalyModeGuard&) = delete;

 private:
  bool previous_;
};

}  // namespace lockstep::autograd
