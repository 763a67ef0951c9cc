#include "lockstep/parallel/model_parallel/stage_outboxes_internal.h"

#include <algorithm>
#include <utility>

#include "lockstep/base/trace.h"
#include "lockstep/parallel/step/micro_batch_internal.h"
#include "lockstep/parallel/step/typed_memory_internal.h"
#include "lockstep/tensor/ops/ops_internal.h"

namespace lockstep::parallel {

StageOutboxes::StageOutboxes(std::shared_ptr<ProcessGroup> group, int stages)
    : group_(std::move(group)), stages_(stages), counts_(2 * static_cast<std::size_t>(stages)) {}

void StageOutboxes::grow(std::int64_t bytes) {
  if (bytes <= slot_bytes_) return;
  constexpr std::int64_t kLine = 64;
  const std::int64_t each = (bytes + kLine - 1) / kLine * kLine;
  memory_.clear();
  slot_bytes_ = 0;
  memory_ = group_->views_of_all(group_->empty({slots() * each}, kUInt8));
  shares_memory_ = !memory_.empty();
  if (shares_memory_)
    slot_bytes_ = each;
  else
    wanted_bytes_ = 0;
}

bool StageOutboxes::can_hold(const Tensor& tensor) {
  if (!shares_memory_ || !tensor.device().is_cpu()) return false;
  wanted_bytes_ = std::max(wanted_bytes_, bytes_of(tensor));
  return bytes_of(tensor) <= slot_bytes_;
}

void StageOutboxes::put(const StageChannel& channel, const Tensor& tensor, const std::string& name) {
  const TraceTime begin = TraceTime::now();
  const Phase phase = phase_of(channel);
  const int from = group_->global_rank(group_->rank()), to = group_->global_rank(channel.receiver % group_->size());
  Counts& counts = counts_[channel.index()];
  raw::copy(tensor, view(memory_[static_cast<std::size_t>(group_->rank())], slot(channel, counts.filled), tensor));
  ++counts.filled;
  group_->traffic().add(from, to, phase, bytes_of(tensor));
  trace_event(TraceKind::kCopy, name, begin,
              {.bytes = bytes_of(tensor), .from = from, .to = to, .phase = static_cast<int>(phase)});
}

void StageOutboxes::free_oldest(const StageChannel& channel) {
  const Tensor& own = memory_[static_cast<std::size_t>(group_->rank())];
  const std::int64_t first = slot(channel, counts_[channel.index()].freed++) * slot_bytes_;
  fill_for_next_owner(typed_view(own, first, slot_bytes_, kUInt8));
}

void StageOutboxes::take(const StageChannel& channel, const Tensor& to) {
  const auto sender = static_cast<std::size_t>(channel.sender() % group_->size());
  raw::copy(view(memory_[sender], slot(channel, counts_[channel.index()].taken++), to), to);
}

std::int64_t StageOutboxes::slot(const StageChannel& channel, std::int64_t message) const {
  const std::int64_t chunk = channel.sender() / group_->size();
  return (2 * chunk + (channel.is_backward ? 1 : 0)) * kMessagesUnderWay + message % kMessagesUnderWay;
}

Tensor StageOutboxes::view(const Tensor& memory, std::int64_t slot, const Tensor& like) const {
  return raw::reshape(typed_view(memory, slot * slot_bytes_, like.numel(), like.dtype()), like.shape());
}

}  // namespace lockstep::parallel
