// Groups of the engine that gloo and mpi share, whose ranks are threads, and what these ranks send.
#pragma once

#include <bit>
#include <functional>
#include <memory>

#include "lockstep/parallel/comm/backends/message_group_internal.h"
#include "tests/parallel/comm/collectives.h"
#include "tests/support/message_ranks.h"

namespace par = ls::parallel;

// Runs fn on `size` ranks; `waits`: like gloo, otherwise like mpi.
inline std::shared_ptr<Post> with_message_group(int size, bool waits, const std::function<void(par::Backend&)>& fn,
                                                std::chrono::milliseconds timeout = std::chrono::seconds(30)) {
  const auto post = std::make_shared<Post>(size);
  run_threads(size, [&](int rank) {
    par::MessageGroup group({.timeout = timeout, .reduction = par::Reduction::kCanonical}, {.rank = rank, .size = size},
                            std::make_unique<PostTransport>(post, rank, waits));
    fn(group);
  });
  return post;
}

inline std::shared_ptr<par::Work> start(par::Backend& group, par::Kind kind, const ls::Tensor& in,
                                        const ls::Tensor& out, int root = 0) {
  const std::int64_t count = std::min(in.numel(), out.numel());
  return group.start(
      {.kind = kind, .in = in, .out = out, .count = count, .dtype = in.dtype(), .root = root, .rank = group.rank()});
}

// The input of rank r: different on each rank, and with sums that round.
inline ls::Tensor own_numbers(int rank, std::int64_t count, ls::DType dtype) {
  return ls::sin(ls::arange(0, count, 1, {.dtype = ls::kFloat64}) * (1.0 + rank)).to(dtype);
}

inline std::int64_t data_bytes(const SentBytes& sent) {
  return sent[static_cast<std::size_t>(par::Channel::kParts)] + sent[static_cast<std::size_t>(par::Channel::kResults)];
}
inline std::int64_t on_heads(const SentBytes& sent) { return sent[static_cast<std::size_t>(par::Channel::kHeaders)]; }

// The messages that a rank sends in an exchange of all ranks. p is the largest power of two up to `size`.
inline int sent_in_exchange(int rank, int size) {
  const int p = static_cast<int>(std::bit_floor(static_cast<unsigned>(size)));
  return rank >= p ? 1 : std::countr_zero(static_cast<unsigned>(p)) + (p + rank < size ? 1 : 0);
}
