// A Work that records its operation in the trace. Not installed.
#pragma once

#include <memory>
#include <utility>

#include "lockstep/parallel/comm/process_group.h"
#include "lockstep/tensor/trace.h"

namespace lockstep::parallel {

class TracedWork final : public Work {
 public:
  // `name` must stay valid until the process ends.
  TracedWork(std::shared_ptr<Work> work, const char* name, TraceTime launched, const TraceLabels& labels)
      : work_(std::move(work)), name_(name), launched_(launched), labels_(labels) {}

  void wait() override {
    const TraceTime begin = now();
    work_->wait();
    trace_wait(begin);
    complete();
  }
  bool is_completed() override {
    const TraceTime begin = now();
    if (!work_->is_completed()) return false;
    trace_wait(begin);  // this rank may have done the operation's work
    complete();
    return true;
  }
  bool is_known_complete() override {
    if (!work_->is_known_complete()) return false;
    complete();
    return true;
  }

 private:
  TraceTime now() const { return launched_ ? TraceTime::now() : TraceTime(); }
  void trace_wait(TraceTime begin) const {
    trace_event(TraceKind::kWait, name_, begin,
                {.to = labels_.to, .id = labels_.id, .phase = labels_.phase, .group = labels_.group});
  }
  void complete() { trace_event(TraceKind::kCollective, name_, std::exchange(launched_, {}), labels_); }

  std::shared_ptr<Work> work_;
  const char* name_;
  TraceTime launched_;  // empty once the operation is complete
  TraceLabels labels_;
};

}  // namespace lockstep::parallel
