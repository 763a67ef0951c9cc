// Exercise 1: three algorithms that sum a tensor over all ranks. See README.md in this folder.
#include "adapters.h"

namespace exercises {
namespace {

// Elements [begin, end) of `t`, as a view: a recv into it writes to `t`.
ls::Tensor part(const ls::Tensor& t, std::int64_t begin, std::int64_t end) { return t.slice(0, begin, end, 1); }

// Sends `out` to rank `to` while it receives `in` from rank `from`. Starts both before it waits for either: if all ranks
// waited for their send first, no rank would receive.
void exchange(par::ProcessGroup& group, const ls::Tensor& out, int to, const ls::Tensor& in, int from) {
  const auto sending = group.send(out, to), receiving = group.recv(in, from);
  receiving->wait();
  sending->wait();
}

}  // namespace

// Every rank sends its tensor to rank 0, which adds them and sends the sum to every rank.
void all_reduce_by_gather(par::ProcessGroup& group, const ls::Tensor& t) { not_done(); }

// `t` is split into n chunks: chunk c is elements [count c / n, count (c+1) / n). In each of n - 1 steps a rank sends one chunk
// to rank + 1 and adds the chunk that it receives from rank - 1 to its own; then each rank has one chunk of the sum
// (reduce-scatter). In n - 1 further steps these chunks are sent around the ring and replace the others' (all-gather).
void all_reduce_by_ring(par::ProcessGroup& group, const ls::Tensor& t) { not_done(); }

// The number of ranks is a power of two. A rank and its partner (rank ^ distance) both have partial sums of the same range:
// each sends the other one half, and adds the half that it receives to its own. After log2 n halvings each rank has one n-th
// of the sum. In the second half, partners exchange the ranges that they have, in the reverse order.
void all_reduce_by_halving_doubling(par::ProcessGroup& group, const ls::Tensor& t) { not_done(); }

}  // namespace exercises
