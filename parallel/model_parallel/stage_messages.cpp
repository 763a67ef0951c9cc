#include "lockstep/parallel/model_parallel/stage_messages_internal.h"

#include <algorithm>
#include <numeric>
#include <span>
#include <string>
#include <utility>

#include "lockstep/base/check_internal.h"
#include "lockstep/tensor/ops/ops_internal.h"

namespace lockstep::parallel {
namespace {

// What is sent before a tensor, in one message of a fixed size.
struct Header {
  std::int64_t step, channel, micro_batch, is_defined, requires_grad, positions, dtype, dims;
  std::array<std::int64_t, kMaxDims> sizes, strides;
};
constexpr int kTag = 0x7e57a6e;  // of these messages alone: others on the group are an error
constexpr std::int64_t kNumbers = sizeof(Header) / sizeof(std::int64_t);

Tensor numbers_of(const Header& header) { return raw::from_bytes(&header, {kNumbers}, kInt64); }

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

// A new tensor with these sizes and strides, on `device`.
Tensor strided(const Header& header, Device device) {
  const Shape sizes(std::vector<std::int64_t>(header.sizes.begin(), header.sizes.begin() + header.dims));
  const Strides strides(std::vector<std::int64_t>(header.strides.begin(), header.strides.begin() + header.dims));
  std::int64_t extent = sizes.numel() > 0 ? 1 : 0;
  for (std::int64_t d = 0; d < sizes.dim() && extent > 0; ++d) extent += (sizes[d] - 1) * strides[d];
  const Tensor memory = raw::empty({extent}, {.dtype = static_cast<DType>(header.dtype), .device = device});
  return raw::as_strided(memory, sizes, strides, 0);
}

Phase phase_of(const StageChannel& channel) {
  return channel.is_backward ? Phase::kActivationGradients : Phase::kActivations;
}

}  // namespace

void StageMessages::begin_step() {
  ++step_;
  sent_bytes_ = 0;
  for (auto& works : sends_) works.clear();
  kept_.clear();
}

void StageMessages::send(const ScheduleAction& action, const Message& message) {
  const StageChannel channel = StageChannel::of(action);
  const int to = channel.receiver % group_->size();
  const std::string name = action.to_string();
  auto& works = sends_[channel.index()];
  while (works.size() >= kMessagesUnderWay) {
    works.front()->wait();
    works.pop_front();
  }
  Header header{.step = step_,
                .channel = static_cast<std::int64_t>(channel.index()),
                .micro_batch = action.micro_batch,
                .is_defined = message.tensor.defined() ? 1 : 0,
                .requires_grad = message.requires_grad ? 1 : 0,
                .positions = message.positions,
                .dtype = 0,
                .dims = 0,
                .sizes = {},
                .strides = {}};
  Tensor payload;
  if (message.tensor.defined()) {
    const Tensor tensor = message.tensor.detach();
    payload = compact(tensor);
    header.dtype = static_cast<std::int64_t>(tensor.dtype());
    header.dims = tensor.dim();
    std::ranges::copy(tensor.shape(), header.sizes.begin());
    for (std::int64_t d = 0; d < tensor.dim(); ++d) header.strides[static_cast<std::size_t>(d)] = tensor.strides()[d];
  }
  works.push_back(group_->send(numbers_of(header), to, kTag, {.name = name}));
  if (!payload.defined() || payload.numel() == 0) return;
  sent_bytes_ += payload.numel() * static_cast<std::int64_t>(item_size(payload.dtype()));
  works.back() = group_->send(payload, to, kTag, {.phase = phase_of(channel), .name = name});
}

StageMessages::Message StageMessages::receive(const ScheduleAction& action, Device device) {
  const StageChannel channel = StageChannel::of(action);
  const Key key(channel.index(), action.micro_batch);
  while (!kept_.contains(key)) take_next(channel.sender() % group_->size(), action, device);
  Message message = std::move(kept_.at(key));
  kept_.erase(key);
  return message;
}

// Receives the next message of a rank, which `action` waits for.
void StageMessages::take_next(int rank, const ScheduleAction& action, Device device) {
  const std::string name = action.to_string();
  const Tensor numbers = raw::empty({kNumbers}, {.dtype = kInt64});
  group_->recv(numbers, rank, kTag, {.name = name})->wait();
  Header header;
  std::ranges::copy(std::as_bytes(numbers.span<std::int64_t>()), reinterpret_cast<std::byte*>(&header));
  Message message{.tensor = {}, .requires_grad = header.requires_grad != 0, .positions = header.positions};
  if (header.is_defined != 0) {
    message.tensor = strided(header, device);
    const Tensor target = compact(message.tensor);
    const Phase phase = header.channel % 2 == 1 ? Phase::kActivationGradients : Phase::kActivations;
    if (target.numel() > 0) group_->recv(target, rank, kTag, {.phase = phase, .name = name})->wait();
  }
  if (header.step == step_)
    kept_.emplace(Key(static_cast<std::size_t>(header.channel), static_cast<int>(header.micro_batch)),
                  std::move(message));
}

void StageMessages::end_step() {
  for (auto& works : sends_) {
    for (const auto& work : works) work->wait();
    works.clear();
  }
}

}  // namespace lockstep::parallel
