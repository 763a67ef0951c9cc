// Exercise 1: three ways to add up a tensor over all ranks. See README.md beside this file.
#include "adapters.h"

namespace exercises {
namespace {

// Elements [begin, end) of `t`, as a view: what is received into it stands in `t`.
ls::Tensor part(const ls::Tensor& t, std::int64_t begin, std::int64_t end) { return t.slice(0, begin, end, 1); }

// Sends `out` to rank `to` while it receives `in` from rank `from`. Both are started before either is waited for: if all
// ranks first waited for their send, nobody would receive.
void exchange(par::ProcessGroup& group, const ls::Tensor& out, int to, const ls::Tensor& in, int from) {
  const auto sending = group.send(out, to), receiving = group.recv(in, from);
  receiving->wait();
  sending->wait();
}

}  // namespace

// Every rank sends all it has to rank 0, which adds it up and sends everyone the sum.
void all_reduce_by_gather(par::ProcessGroup& group, const ls::Tensor& t) { not_done(); }

// `t` is cut into as many chunks as there are ranks: chunk c is elements [count c / n, count (c+1) / n). In each of n - 1
// steps a rank sends one chunk to rank + 1 and adds the one that comes from rank - 1 to its own; then each rank has one
// chunk of the sum. In n - 1 steps more these go around and replace what the others have.
void all_reduce_by_ring(par::ProcessGroup& group, const ls::Tensor& t) { not_done(); }

// The number of ranks is a power of two. A rank and its partner (rank ^ distance) both have sums of the same range: each
// gives the other one half and adds what it gets for its own half. After log2 n halvings each has one n-th of the sum; on the
// way back partners give each other what they have.
void all_reduce_by_halving_doubling(par::ProcessGroup& group, const ls::Tensor& t) { not_done(); }

}  // namespace exercises
