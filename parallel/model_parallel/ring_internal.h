// Ring attention: the ranks of the sequence blocks, and what they send each other. Not installed.
#pragma once

#include <memory>
#include <string>

#include "lockstep/autograd/ops/functions.h"
#include "lockstep/parallel/comm/process_group.h"
#include "lockstep/parallel/model_parallel/context_blocks_internal.h"

namespace lockstep::parallel {

struct Ring {
  std::shared_ptr<ProcessGroup> group;
  SequenceBlocks blocks;
  bool gathers;  // keys and values of all ranks at once
};

// scaled_dot_product_attention of this rank's queries to the keys of all ranks, one sequence block after another: the
// result for each is merged with that for those before by their log-sum-exp, in f32. (Liu et al., 2023)
Tensor ring_attention(const Ring& ring, const Tensor& q, const Tensor& k, const Tensor& v,
                      const AttentionOptions& options);

// A tensor that the ranks send round the ring.
struct RingMessage {
  int tag;
  std::string name;
  Phase phase;
};

// Tags for up to four tensors of one attention, forward or backward: the returned number and those that follow. They
// differ from those of the attentions before, so that a rank that has computed fewer of them, because of an exception,
// gets an error and no tensor of another attention.
int next_tags(const Ring& ring);

// Sends one tensor a step to the next rank, and receives one from the rank before.
class RingPass {
 public:
  RingPass(const Ring& ring, RingMessage message) : ring_(ring), message_(std::move(message)) {}
  // Starts to send `own`, and to receive a tensor like it. `own` must not change before `wait`.
  void start(const Tensor& own);
  // The received tensor, which stays as it is until the second `start` after.
  Tensor wait();

 private:
  const Ring& ring_;
  RingMessage message_;
  Tensor buffers_[2];
  int starts_ = 0;
  std::shared_ptr<Work> sent_, received_;
};

// One tensor's sequence blocks, in the order in which they reach this rank.
class BlocksInTurn {
 public:
  // `all` (blocks, ...): those of all ranks, if they have been gathered; or undefined.
  BlocksInTurn(const Ring& ring, const Tensor& own, const Tensor& all, RingMessage message);
  // To be called with 0, 1, ... Sends the sequence block on, too.
  Tensor at(int step);

 private:
  const Ring& ring_;
  Tensor current_, all_;
  RingPass pass_;
};

// The gradients of one tensor's sequence blocks. Each rank adds what its queries contribute; a sum begins with the
// contribution of the sequence block's own rank, and those of the ranks behind follow in their order.
class BlockGradients {
 public:
  BlockGradients(const Ring& ring, bool causal, RingMessage message);
  // To be called with 0, 1, ...: the contribution to what BlocksInTurn::at has returned, or to its first rows only;
  // undefined: none.
  void add(int step, const Tensor& contribution);
  // The sum for this rank's sequence block.
  Tensor finish();

 private:
  void store(int step, const Tensor& contribution);
  Tensor exchange();

  const Ring& ring_;
  bool causal_;
  RingMessage message_;
  RingPass pass_;
  Tensor all_;  // with gathered keys: the contributions to all of them
};

}  // namespace lockstep::parallel
