#include "lockstep/parallel/step/replica_exchange_internal.h"

#include <utility>

#include "lockstep/base/check_internal.h"

namespace lockstep::parallel {

namespace {
constinit thread_local RunningMicroBatches running_now;
}

const RunningMicroBatches& running_micro_batches() { return running_now; }
RunningGuard::RunningGuard(const RunningMicroBatches& running) : before_(std::exchange(running_now, running)) {}
RunningGuard::~RunningGuard() { running_now = before_; }

// A round ends when all have arrived. The next one ends only after all have returned from this one.
std::vector<Tensor> ReplicaExchange::all_gather(const char* op, int replica, const Tensor& own) {
  std::unique_lock lock(mutex_);
  given_[static_cast<std::size_t>(replica)] = own;
  const std::int64_t round = rounds_;
  if (++arrived_ == given_.size()) {
    gathered_ = given_;
    arrived_ = 0;
    ++rounds_;
    changed_.notify_all();
  }
  changed_.wait(lock, [&] { return rounds_ > round || left_ >= 0; });
  if (rounds_ > round) return gathered_;
  told_[static_cast<std::size_t>(replica)] = true;
  throw Error(
      fmt::format("{}: replica {} waits for replica {}, which has ended; all replicas must run the same layers, in the "
                  "same mode",
                  op, replica, left_));
}

void ReplicaExchange::leave(int replica, bool failed) {
  const std::lock_guard lock(mutex_);
  if (left_ < 0) left_ = replica;
  int& lowest = told_[static_cast<std::size_t>(replica)] ? failed_waiting_ : failed_;
  if (failed && (lowest < 0 || replica < lowest)) lowest = replica;
  changed_.notify_all();
}

}  // namespace lockstep::parallel
