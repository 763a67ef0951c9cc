// The threads of DataParallel's replicas: the calling thread for the first one, a worker for each other. Not installed.
#pragma once

#include <atomic>
#include <memory>
#include <span>
#include <vector>

#include "lockstep/base/callback.h"
#include "lockstep/base/device.h"
#include "lockstep/parallel/replicated/replicas/replica_worker_internal.h"

namespace lockstep::parallel {

class ReplicaWorkers {
 public:
  explicit ReplicaWorkers(std::size_t replicas);

  // Calls body(0) to body(errors.size() - 1) at the same time, each on its own thread, and stores their exceptions.
  // Returns false, without a call, while the threads are busy, also with the body that calls this.
  bool run(FunctionRef<void(int replica)> body, std::span<std::exception_ptr> errors);

 private:
  std::atomic_flag busy_;
  std::vector<std::unique_ptr<ReplicaWorker>> workers_;  // of replica 1 and the following
};

// Calls body(0) to body(devices.size() - 1) on the workers or, if `workers` is null or busy, one after another on this
// thread. Rethrows the first replica's exception, naming the replica and its device.
void run_replicas(ReplicaWorkers* workers, std::span<const Device> devices, FunctionRef<void(int replica)> body);

}  // namespace lockstep::parallel
