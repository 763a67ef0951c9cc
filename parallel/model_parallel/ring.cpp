// The passes round a ring: of keys and values, and of their gradients.
#include <utility>

#include "lockstep/parallel/model_parallel/ring_internal.h"
#include "lockstep/tensor/ops/ops_internal.h"

namespace lockstep::parallel {
namespace {

// sum += added, for the first rows of `sum`.
void add_rows(const Tensor& sum, const Tensor& added) {
  const Tensor rows = sum.narrow(-2, 0, added.size(-2));
  raw::copy(raw::add(rows, added), rows);
}

// Attached to a group: the number of attentions so far that have passed tensors round its ring.
struct Attentions {
  int count = 0;
};

}  // namespace

int next_tags(const Ring& ring) {
  constexpr int kUntilRepeated = 1 << 28;
  return 4 * (ring.group->attachment<Attentions>().count++ % kUntilRepeated);
}

void RingPass::start(const Tensor& own) {
  ProcessGroup& group = *ring_.group;
  Tensor& buffer = buffers_[starts_++ % 2];
  if (!buffer.defined()) buffer = raw::empty(own.shape(), own.options());
  const CallOptions options{.phase = message_.phase, .name = message_.name};
  const int size = group.size(), rank = group.rank();
  sent_ = group.send(own, (rank + 1) % size, message_.tag, options);
  received_ = group.recv(buffer, (rank + size - 1) % size, message_.tag, options);
}

Tensor RingPass::wait() {
  received_->wait();
  sent_->wait();
  return buffers_[(starts_ + 1) % 2];
}

BlocksInTurn::BlocksInTurn(const Ring& ring, const Tensor& own, const Tensor& all, RingMessage message)
    : ring_(ring), current_(own), all_(all), pass_(ring, std::move(message)) {}

Tensor BlocksInTurn::at(int step) {
  if (all_.defined()) return all_.select(0, ring_.blocks.reached(step));
  if (step > 0) current_ = pass_.wait();
  if (step + 1 < ring_.blocks.count) pass_.start(current_);
  return current_;
}

BlockGradients::BlockGradients(const Ring& ring, bool causal, RingMessage message)
    : ring_(ring), causal_(causal), message_(message), pass_(ring, std::move(message)) {}

void BlockGradients::add(int step, const Tensor& contribution) {
  if (ring_.gathers) return store(step, contribution);
  if (step == 0) return pass_.start(contribution);
  const Tensor sum = pass_.wait();
  if (contribution.defined()) add_rows(sum, contribution);
  pass_.start(sum);
}

void BlockGradients::store(int step, const Tensor& contribution) {
  if (step == 0) {
    Shape shape = contribution.shape();
    shape.insert(0, ring_.blocks.count);
    all_ = raw::zeros(shape, contribution.options());
  }
  if (!contribution.defined()) return;
  raw::copy(contribution, all_.select(0, ring_.blocks.reached(step)).narrow(-2, 0, contribution.size(-2)));
}

Tensor BlockGradients::finish() { return ring_.gathers ? exchange() : pass_.wait(); }

Tensor BlockGradients::exchange() {
  const Tensor received = raw::empty(all_.shape(), all_.options());
  ring_.group->all_to_all(received, all_, {}, {.phase = message_.phase, .name = message_.name})->wait();
  const SequenceBlocks& blocks = ring_.blocks;
  const Tensor sum = received.select(0, blocks.own);
  for (int i = 1; i < blocks.count; ++i) {
    const int from = (blocks.own + i) % blocks.count;
    const BlockPair pair = blocks.pair(from, blocks.own, sum.size(-2), causal_);
    if (pair.queries > 0) add_rows(sum, received.select(0, from).narrow(-2, 0, pair.keys));
  }
  return sum;
}

}  // namespace lockstep::parallel
