// The reducer's way through a communication hook, and its steps on a rank that is out of data.
#include <cmath>

#include "lockstep/parallel/replicated/reducer_internal.h"
#include "lockstep/tensor/check_internal.h"
#include "lockstep/tensor/ops_internal.h"

namespace lockstep::parallel {

void Reducer::set_hook(std::shared_ptr<CommHook> hook) {
  hook_ = std::move(hook);
  for (std::size_t b = 0; b < buckets_.size(); ++b) {
    Bucket& bucket = buckets_[b];
    const BucketLayout& layout = bucket.layout;
    bucket.own = hook_ ? raw::slice(bucket.memory, 0, layout.tail, layout.elements, 1) : bucket.memory;
    if (!hook_) continue;
    bucket.hooked = {
        .index = b, .is_last = b + 1 == buckets_.size(), .buffer = raw::slice(bucket.memory, 0, 0, layout.tail, 1)};
    for (const std::size_t p : layout.parameters) {
      bucket.hooked.gradients.push_back(slots_[p].home);
      bucket.hooked.names.push_back(parameters_[p].first);
    }
  }
}

void Reducer::start_hook(std::size_t b) {
  if (!hook_) return;
  try {
    const PhaseGuard phase(*group_, Phase::kGradients);
    buckets_[b].hook_work = hook_->start(buckets_[b].hooked, *group_);
    LOCKSTEP_CHECK(buckets_[b].hook_work, "the communication hook ({}) returned no Work", hook_->describe());
  } catch (Error& error) {
    drain();
    explain(error, b, "launching ");
    throw;
  } catch (...) {
    drain();
    throw;
  }
}

// A hook may fail on all ranks, and they may go on with another step: not before other ranks have done with this
// one's buckets.
void Reducer::drain() {
  if (!hook_) return;
  for (Bucket& bucket : buckets_) {
    for (std::shared_ptr<Work>* const work : {&bucket.work, &bucket.hook_work}) {
      const std::shared_ptr<Work> left = std::exchange(*work, nullptr);
      try {
        if (left) left->wait();
      } catch (const std::exception&) {
        // The error that brought us here is the one to tell.
      }
    }
  }
}

bool Reducer::shadow_step() {
  begin_step({.micro_batches = 0, .weighted = options_.weighting == Weighting::kSamples, .joined = true});
  begin(nullptr);
  for (std::size_t p = 0; p < slots_.size(); ++p) settle(p);
  start_own(0);  // whose tail says whether there is a step
  wait_for(0);
  if (std::lround(tail_sum(kTailJoined)) == group_->size()) {
    abandon();
    return false;
  }
  start_hook(0);
  next_ = 1;
  finish();
  return true;
}

}  // namespace lockstep::parallel
