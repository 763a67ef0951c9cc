// Messages between the stages of a pipeline: their tensors, and outboxes on ranks that share memory.
#pragma once

#include "lockstep/parallel/model_parallel/stage_messages_internal.h"

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "tests/support/groups.h"

namespace stage_messages {

namespace par = ls::parallel;
using Kind = par::ActionKind;
using par::Phase;
using par::StageMessages;

// Numbers that the ranks pass to each other without the group.
struct Signal {
  std::function<void()> give, wait;
};

constexpr std::int64_t kLarge = 64 * 1024;  // elements of f32; larger than what `send` keeps

inline ls::Tensor numbered(std::int64_t m, std::int64_t count = kLarge) {
  return ls::full({count}, static_cast<double>(m + 1));
}

// Sends from stage 0 on rank 0 to stage 1 on rank 1.
inline void exchange(StageMessages& messages, int rank, int m, const StageMessages::Message& message,
                     const std::function<void(const StageMessages::Message&)>& check) {
  if (rank == 0)
    messages.send({Kind::kSendForward, 0, m}, message);
  else
    check(messages.receive({Kind::kReceiveForward, 1, m}, {}));
}

inline void grow(const Group& group, StageMessages& messages) {
  const ls::Tensor bytes = ls::full({1}, static_cast<double>(messages.wanted_bytes()), {.dtype = ls::kFloat64});
  group->all_reduce(bytes, par::ReduceOp::kMax)->wait();
  messages.grow_outboxes(static_cast<std::int64_t>(bytes.item<double>()));
}

// A large message before outboxes exist, after which they do where ranks share memory.
inline void begin_with_outboxes(const Group& group, StageMessages& messages) {
  exchange(messages, group->rank(), 0, {numbered(0)},
           [](const auto& got) { CHECK(ls::equal(got.tensor, numbered(0))); });
  messages.end_step();
  grow(group, messages);
}

inline void check_tensors(const Group& group) {
  const int rank = group->rank();
  StageMessages messages(group, 2);
  for (int round = 0; round < 3; ++round) {
    messages.begin_step();
    const std::vector<ls::Tensor> tensors = {
        ls::arange(24, {.dtype = ls::kFloat32}).reshape({2, 3, 4}),
        ls::arange(24, {.dtype = ls::kFloat32}).reshape({2, 3, 4}).transpose(0, 2),
        ls::arange(5, {.dtype = ls::kFloat32}).to(ls::kBFloat16),
        ls::arange(7, {.dtype = ls::kInt64}),
        ls::ones({3, 1}).expand({3, 4}),
        ls::zeros({2, 0, 3}),
        ls::full({}, 3.0),
        numbered(round, kLarge + 1),
        ls::Tensor(),
    };
    for (std::size_t m = 0; m < tensors.size(); ++m) {
      const ls::Tensor& want = tensors[m];
      exchange(messages, rank, static_cast<int>(m), {want, m % 2 == 0}, [&](const StageMessages::Message& got) {
        CAPTURE(m);
        CHECK(got.requires_grad == (m % 2 == 0));
        CHECK(got.tensor.defined() == want.defined());
        if (!want.defined() || !got.tensor.defined()) return;
        CHECK(got.tensor.dtype() == want.dtype());
        CHECK(got.tensor.shape() == want.shape());
        CHECK(got.tensor.strides() == want.strides());
        CHECK(ls::equal(got.tensor.contiguous(), want.contiguous()));
      });
    }
    messages.end_step();
    const std::int64_t sent = (24 + 24) * 4 + 5 * 2 + 7 * 8 + 3 * 4 + 0 + 4 + (kLarge + 1) * 4;
    CHECK(messages.sent_bytes() == (rank == 0 ? sent : 0));
    grow(group, messages);
  }
}

// A message is there while its sender neither waits nor calls the group.
inline void check_busy_sender(const Group& group, const Signal& received) {
  StageMessages messages(group, 2);
  begin_with_outboxes(group, messages);
  for (int m = 0; m < 8; ++m) {
    exchange(messages, group->rank(), m, {numbered(m)}, [&](const auto& got) {
      CHECK(ls::equal(got.tensor, numbered(m)));
      received.give();
    });
    if (group->rank() == 0) received.wait();
  }
  messages.end_step();
}

// The receiver takes messages out of their order and after they were sent, so the sender waits for free slots; a tensor
// keeps its values when its slot is free.
inline void check_slots(const Group& group) {
  StageMessages messages(group, 2);
  begin_with_outboxes(group, messages);
  constexpr int kMessages = 9;
  if (group->rank() == 0) {
    for (int m = 0; m < kMessages; ++m) {
      messages.send({Kind::kSendForward, 0, m}, {numbered(m)});
      if (m >= 4) CHECK(ls::equal(messages.receive({Kind::kReceiveBackward, 0, m - 4}, {}).tensor, numbered(m + 96)));
    }
  } else {
    std::vector<ls::Tensor> kept;
    for (const int m : {3, 0, 1, 2, 4, 5, 6, 7, 8}) {
      kept.push_back(messages.receive({Kind::kReceiveForward, 1, m}, {}).tensor);
      if (m >= 4) messages.send({Kind::kSendBackward, 1, m - 4}, {numbered(m + 96)});
    }
    for (std::size_t i = 4; i < kept.size(); ++i) CHECK(ls::equal(kept[i], numbered(static_cast<std::int64_t>(i))));
    CHECK(ls::equal(kept[0], numbered(3)));
  }
  messages.end_step();
}

// Tensors are counted as `send` counts them, and acknowledgements are other traffic.
inline void check_traffic(const Group& group, bool shares_memory) {
  StageMessages messages(group, 2);
  begin_with_outboxes(group, messages);
  const int rank = group->rank(), other = 1 - rank;
  par::TrafficStats& traffic = group->traffic();
  traffic.clear();
  constexpr int kMessages = 5;
  for (int m = 0; m < kMessages; ++m) exchange(messages, rank, m, {numbered(m)}, [](const StageMessages::Message&) {});
  messages.end_step();
  std::int64_t tensors = 0, headers = 0;
  for (const par::LinkTraffic& link : traffic.links()) {
    CHECK((link.from == group->global_rank(rank) && link.to == group->global_rank(other)));
    CHECK((link.phase == Phase::kActivations || link.phase == Phase::kOther));
    (link.phase == Phase::kActivations ? tensors : headers) += link.transfers;
  }
  CHECK(traffic.bytes(Phase::kActivations) == (rank == 0 ? kMessages * kLarge * 4 : 0));
  CHECK(tensors == (rank == 0 ? kMessages : 0));
  CHECK(headers == (rank == 0 || shares_memory ? kMessages : 0));
}

}  // namespace stage_messages
