#include "lockstep/parallel/model_parallel/stage_messages_internal.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <numeric>
#include <span>
#include <utility>

#include "lockstep/parallel/step/micro_batch_internal.h"
#include "lockstep/tensor/ops/ops_internal.h"

namespace lockstep::parallel {
namespace {

constexpr int kTag = 0x7e57a6e;  // of these messages alone: others on the group are an error

// The elements of a tensor that are sent: in the order of memory, without the repetitions of an expanded one.
Tensor compact(const Tensor& strided) {
  std::vector<std::int64_t> order(static_cast<std::size_t>(strided.dim()));
  std::iota(order.begin(), order.end(), 0);
  std::ranges::stable_sort(order, std::ranges::greater(), [&](std::int64_t d) { return strided.strides()[d]; });
  Tensor once = strided;
  for (std::int64_t d = 0; d < strided.dim(); ++d) {
    if (strided.strides()[d] == 0 && strided.size(d) > 1) once = raw::slice(once, d, 0, 1, 1);
  }
  return raw::permute(once, Shape(order));
}

// A new tensor with these sizes and strides, which have no gaps.
Tensor strided(const Shape& sizes, const Strides& strides, const TensorOptions& options) {
  std::int64_t extent = sizes.numel() > 0 ? 1 : 0;
  for (std::int64_t d = 0; d < sizes.dim() && extent > 0; ++d) extent += (sizes[d] - 1) * strides[d];
  return raw::as_strided(raw::empty({extent}, options), sizes, strides, 0);
}

}  // namespace

// A message of a fixed size: it comes before a tensor, or acknowledges that a tensor has been taken from an outbox.
struct StageMessages::Header {
  std::int64_t channel = 0, micro_batch = 0, is_acknowledgement = 0, is_in_outbox = 0, requires_grad = 0, positions = 0;
  std::int64_t is_defined = 0, dtype = 0, dims = 0;  // of the tensor
  std::array<std::int64_t, kMaxDims> sizes = {}, strides = {};

  static constexpr std::int64_t kNumbers = 9 + 2 * kMaxDims;
  static Header of(const StageChannel& channel, int micro_batch, const Message& message);
  Tensor tensor(Device device) const {  // without values
    return strided(Shape(std::vector<std::int64_t>(sizes.begin(), sizes.begin() + dims)),
                   Strides(std::vector<std::int64_t>(strides.begin(), strides.begin() + dims)),
                   {.dtype = static_cast<DType>(dtype), .device = device});
  }
};

StageMessages::Header StageMessages::Header::of(const StageChannel& channel, int micro_batch, const Message& message) {
  Header header = {.channel = static_cast<std::int64_t>(channel.index()), .micro_batch = micro_batch};
  header.requires_grad = message.requires_grad ? 1 : 0;
  header.positions = message.positions;
  if (!message.tensor.defined()) return header;
  header.is_defined = 1;
  header.dtype = static_cast<std::int64_t>(message.tensor.dtype());
  header.dims = message.tensor.dim();
  std::ranges::copy(message.tensor.shape(), header.sizes.begin());
  std::ranges::copy(message.tensor.strides(), header.strides.begin());
  return header;
}

StageMessages::StageMessages(std::shared_ptr<ProcessGroup> group, int stages)
    : group_(std::move(group)), outboxes_(group_, stages), sends_(2 * static_cast<std::size_t>(stages)) {}

std::shared_ptr<Work> StageMessages::send_header(const Header& header, int to, const std::string& name) {
  return group_->send(raw::from_bytes(&header, {Header::kNumbers}, kInt64), to, kTag, {.name = name});
}

void StageMessages::send(const ScheduleAction& action, const Message& message) {
  const StageChannel channel = StageChannel::of(action);
  const int to = channel.receiver % group_->size();
  const std::string name = action.to_string();
  wait_for_slot(channel, name);
  Header header = Header::of(channel, action.micro_batch, message);
  const Tensor payload = message.tensor.defined() ? compact(message.tensor.detach()) : Tensor();
  const bool has_payload = payload.defined() && payload.numel() > 0;
  if (has_payload) sent_bytes_ += bytes_of(payload);
  header.is_in_outbox = has_payload && outboxes_.can_hold(payload) ? 1 : 0;
  if (header.is_in_outbox) outboxes_.put(channel, payload, name);
  std::shared_ptr<Work> work = send_header(header, to, name);
  if (header.is_in_outbox) return;
  if (has_payload) work = group_->send(payload, to, kTag, {.phase = phase_of(channel), .name = name});
  sends_[channel.index()].push_back(std::move(work));
}

// Messages that arrive meanwhile are received, so that two ranks may wait for each other's acknowledgements.
void StageMessages::wait_for_slot(const StageChannel& channel, const std::string& name) {
  auto& works = sends_[channel.index()];
  while (works.size() >= kMessagesUnderWay) {
    works.front()->wait();
    works.pop_front();
  }
  while (outboxes_.is_full(channel)) take_next(channel.receiver % group_->size(), name, Device());
}

StageMessages::Message StageMessages::receive(const ScheduleAction& action, Device device) {
  const StageChannel channel = StageChannel::of(action);
  const Key key(channel.index(), action.micro_batch);
  while (!kept_.contains(key)) take_next(channel.sender() % group_->size(), action.to_string(), device);
  Message message = std::move(kept_.at(key));
  kept_.erase(key);
  return message;
}

// Receives the next message of a rank, which the action of this name waits for.
void StageMessages::take_next(int rank, const std::string& name, Device device) {
  const Tensor numbers = raw::empty({Header::kNumbers}, {.dtype = kInt64});
  group_->recv(numbers, rank, kTag, {.name = name})->wait();
  Header header;
  std::ranges::copy(std::as_bytes(numbers.span<std::int64_t>()), reinterpret_cast<std::byte*>(&header));
  const auto channel = StageChannel::at(static_cast<std::size_t>(header.channel));
  if (header.is_acknowledgement) return outboxes_.free_oldest(channel);
  Message message{.tensor = {}, .requires_grad = header.requires_grad != 0, .positions = header.positions};
  if (header.is_defined) {
    message.tensor = header.tensor(device);
    const Tensor target = compact(message.tensor);
    if (header.is_in_outbox) {
      outboxes_.take(channel, target);
      send_header({.channel = header.channel, .is_acknowledgement = 1}, rank, name);
    } else if (target.numel() > 0) {
      group_->recv(target, rank, kTag, {.phase = phase_of(channel), .name = name})->wait();
    }
  }
  kept_.emplace(Key(channel.index(), static_cast<int>(header.micro_batch)), std::move(message));
}

void StageMessages::end_step() {
  for (std::size_t c = 0; c < sends_.size(); ++c) {
    for (const auto& work : sends_[c]) work->wait();
    sends_[c].clear();
    const auto channel = StageChannel::at(c);
    while (!outboxes_.is_free(channel)) take_next(channel.receiver % group_->size(), "the end of a step", Device());
  }
}

}  // namespace lockstep::parallel
