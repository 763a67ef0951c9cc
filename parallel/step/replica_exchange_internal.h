// The micro-batches of a step that run at the same time as the calling thread's, and the exchange of tensors between the
// replicas of one process. Not installed.
#pragma once

#include <condition_variable>
#include <mutex>
#include <vector>

#include "lockstep/tensor/tensor.h"

namespace lockstep::parallel {

// Exchanges tensors between the replicas of a DataParallel.
class ReplicaExchange {
 public:
  explicit ReplicaExchange(std::size_t replicas) : given_(replicas), told_(replicas) {}
  int size() const { return static_cast<int>(given_.size()); }
  // Returns every replica's tensor, in order. Each replica's thread calls this equally often. Throws Error, naming `op`, if
  // another replica has ended, and then no replica can.
  std::vector<Tensor> all_gather(const char* op, int replica, const Tensor& own);
  // The replica has ended, by an exception if it `failed`.
  void leave(int replica, bool failed);
  // The replica whose exception is reported, which does not depend on time: the lowest of those that failed by
  // themselves, rather than because another had ended. -1: none failed.
  int failure() const { return failed_ >= 0 ? failed_ : failed_waiting_; }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<Tensor> given_, gathered_;
  std::size_t arrived_ = 0;
  std::int64_t rounds_ = 0;
  std::vector<bool> told_;   // by replica: all_gather has thrown
  int left_ = -1;            // the replica that ended first
  int failed_ = -1;          // the lowest that failed by itself
  int failed_waiting_ = -1;  // the lowest that failed after all_gather had thrown
};

struct RunningMicroBatches {
  int in_turn = 1;                      // that this thread runs one after another in a step
  ReplicaExchange* exchange = nullptr;  // of a DataParallel whose replicas run at the same time; null: there is none
  int replica = 0;
};
// Returns those of the calling thread.
const RunningMicroBatches& running_micro_batches();

// Sets them while it exists.
class RunningGuard {
 public:
  explicit RunningGuard(const RunningMicroBatches& running);
  ~RunningGuard();
  RunningGuard(const RunningGuard&) = delete;
  RunningGuard& operator=(const RunningGuard&) = delete;

 private:
  RunningMicroBatches before_;
};

}  // namespace lockstep::parallel
