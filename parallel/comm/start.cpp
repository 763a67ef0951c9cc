// Starting an operation: the steps from the user's tensors to the backend, which are the same for all backends.
#include <algorithm>
#include <bit>
#include <utility>

#include "lockstep/base/check_internal.h"
#include "lockstep/base/trace.h"
#include "lockstep/parallel/comm/backend_internal.h"
#include "lockstep/tensor/ops/combine_internal.h"
#include "lockstep/tensor/ops/ops_internal.h"

namespace lockstep::parallel {

// The trace event of an operation, if a trace is running.
struct ProcessGroup::Launch {
  TraceTime time;
  TraceLabels labels;
};

namespace {

class Done final : public Work {
 public:
  void wait() override {}
  bool is_completed() override { return true; }
};

class Then final : public Work {
 public:
  Then(std::shared_ptr<Work> work, Callback<void()> finish) : work_(std::move(work)), finish_(std::move(finish)) {}
  void wait() override {
    work_->wait();
    if (finish_) std::exchange(finish_, {})();
  }
  bool is_completed() override {
    if (!work_->is_completed()) return false;
    check_completed();
    return true;
  }
  bool is_known_complete() override { return !finish_ && work_->is_known_complete(); }
  void check_completed() override {
    work_->check_completed();
    if (finish_) std::exchange(finish_, {})();
  }

 private:
  std::shared_ptr<Work> work_;
  Callback<void()> finish_;
};

// Records its operation in the trace.
class TracedWork final : public Work {
 public:
  TracedWork(std::shared_ptr<Work> work, std::string name, TraceTime launched, const TraceLabels& labels)
      : work_(std::move(work)), name_(std::move(name)), launched_(launched), labels_(labels) {}

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
  void check_completed() override { work_->check_completed(); }

 private:
  TraceTime now() const { return launched_ ? TraceTime::now() : TraceTime(); }
  void trace_wait(TraceTime begin) const {
    trace_event(TraceKind::kWait, name_, begin,
                {.to = labels_.to, .id = labels_.id, .phase = labels_.phase, .group = labels_.group});
  }
  void complete() { trace_event(TraceKind::kCollective, name_, std::exchange(launched_, {}), labels_); }

  std::shared_ptr<Work> work_;
  std::string name_;
  TraceTime launched_;  // empty once the operation is complete
  TraceLabels labels_;
};

// Runs an operation in a group of one rank, as a copy or as a reduction of one value.
void run_alone(const Call& call) {
  if (call.count == 0 || call.kind == Kind::kBarrier) return;
  const void* const in = call.in.raw_data();
  void* const out = call.out.raw_data();
  if (call.scale == 1 && in == out) return;
  if (call.scale == 1) return raw::copy(call.in.reshape(call.out.shape()), call.out);
  raw::combine({.inputs = {&in, 1}, .outputs = {&out, 1}, .dtype = call.dtype, .scale = call.scale}, 0, call.count,
               call.out.device());
}

// True if both tensors have the same elements in memory, in the same order.
bool same_place(const Tensor& a, const Tensor& b) {
  return a.defined() && a.raw_data() == b.raw_data() && a.shape() == b.shape() && a.strides() == b.strides() &&
         a.dtype() == b.dtype();
}

// Sets the call's tensors, made contiguous. A strided output is replaced by a copy, so that elements that the
// operation does not write keep their values.
void pack_tensors(Call& call, const Tensor& in, const Tensor& out, bool same_values) {
  if (in.defined()) call.in = raw::contiguous(in);
  if (out.defined()) {
    if (out.is_contiguous())
      call.out = out;
    else
      call.out = same_place(in, out) ? call.in : raw::clone(out);
    if (!same_values) out.impl().storage->bump_version();
  }
  if (call.in.defined()) call.dtype = call.in.dtype();
}

// Hashes what must be equal on all ranks besides kind, dtype and count: name and id, the scale, and the shape for
// operations whose tensors have one shape on all ranks (FNV-1a).
std::uint64_t detail_of(const Call& call, const CallOptions& options) {
  std::uint64_t hash = 0xcbf29ce484222325;
  const auto mix = [&](std::uint64_t value) { hash = (hash ^ value) * 0x100000001b3; };
  mix(std::bit_cast<std::uint64_t>(call.scale));
  mix(options.id);
  for (const char byte : options.name) mix(static_cast<unsigned char>(byte));
  if (call.kind != Kind::kAllReduce && call.kind != Kind::kBroadcast && call.kind != Kind::kReduce) return hash;
  for (const std::int64_t size : call.in.shape()) mix(static_cast<std::uint64_t>(size));
  return hash;
}

// "all_gather unit blocks.1". The end of a name tells units apart, so a long name loses its first word, and
// then its beginning.
std::string event_name(std::string_view kind, std::string_view name) {
  if (name.empty()) return std::string(kind);
  const std::size_t room = kTraceNameLength - kind.size() - 1;
  if (name.size() > room) name.remove_prefix(name.find(' ') + 1);  // without a space: by 0
  if (name.size() > room) name.remove_prefix(name.size() - room);
  return fmt::format("{} {}", kind, name);
}

PurposeName end_of(std::string_view name) {
  PurposeName end = {};
  name.substr(name.size() - std::min(name.size(), end.size())).copy(end.data(), end.size());
  return end;
}

bool is_floating_sum(const Call& call) {
  return call.flow().reduces && (call.op == ReduceOp::kSum || call.op == ReduceOp::kAvg) &&
         is_floating_point(call.dtype);
}

}  // namespace

std::shared_ptr<Work> then(std::shared_ptr<Work> work, Callback<void()> finish) {
  return std::make_shared<Then>(std::move(work), std::move(finish));
}

// Numbers collectives per group and messages per pair of ranks, so that an operation has one number on all its ranks.
std::uint64_t ProcessGroup::next_number(const Call& call) {
  if (!call.is_message()) return calls_++;
  return messages_[static_cast<std::size_t>(call.kind == Kind::kSend ? call.root : size() + call.root)]++;
}

// Starts an operation. `call` is complete except for the tensors.
std::shared_ptr<Work> ProcessGroup::start(Call call, const Tensor& in, const Tensor& out, const CallOptions& options) {
  const char* const kind = name(call.kind);
  if (out.defined()) raw::require_writable(kind, out);
  call.number = next_number(call);
  call.rank = rank();
  call.global_rank = place_.global_rank(rank());
  call.global_root = place_.global_rank(call.root);
  call.phase = options.phase.value_or(phase_);
  call.failed_steps = failed_steps_;
  if (call.op == ReduceOp::kAvg) call.scale = 1.0 / size();
  pack_tensors(call, in, out, options.same_values);
  if (*order_text(options_.reduction) && is_floating_sum(call)) call.order = options_.reduction;
  call.detail = detail_of(call, options);
  call.purpose = end_of(options.name);
  const Launch launched = record(call);
  const bool is_packed = out.defined() && !out.is_contiguous();
  const Tensor packed = is_packed ? call.out : Tensor();
  std::shared_ptr<Work> work = launch(std::move(call));
  if (launched.time) [[unlikely]]
    work =
        std::make_shared<TracedWork>(std::move(work), event_name(kind, options.name), launched.time, launched.labels);
  if (!is_packed) return work;
  return keep(then(std::move(work), [packed, out] { raw::copy(packed, out); }));
}

// Records the traffic of the call.
ProcessGroup::Launch ProcessGroup::record(const Call& call) {
  const TraceTime now = TraceTime::now();
  const std::int64_t before = now ? traffic_->bytes() : 0;
  if (backend_) backend_->record_traffic(call, call.phase, *traffic_);
  return {now,
          {.bytes = now ? traffic_->bytes() - before : 0,
           .from = call.global_rank,
           .to = call.is_message() ? call.global_root : -1,
           .id = static_cast<std::int64_t>(call.number),
           .phase = static_cast<int>(call.phase),
           .group = trace_group_}};
}

// Starts the operation on the device on which the backend runs it.
std::shared_ptr<Work> ProcessGroup::launch(Call call) {
  if (!backend_) {
    run_alone(call);
    return std::make_shared<Done>();
  }
  const Tensor& any = call.in.defined() ? call.in : call.out;
  if (!any.defined()) return backend_->start(std::move(call));
  const Device on = backend_->device_for(any.device());
  return on == any.device() ? backend_->start(std::move(call)) : start_staged(std::move(call), on);
}

// Keeps an unfinished Work, so that it finishes even if the user drops it.
std::shared_ptr<Work> ProcessGroup::keep(std::shared_ptr<Work> work) {
  std::erase_if(unfinished_, [](const std::shared_ptr<Work>& each) { return each->is_completed(); });
  unfinished_.push_back(work);
  return work;
}

}  // namespace lockstep::parallel
