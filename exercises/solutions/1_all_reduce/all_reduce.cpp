#include "adapters.h"

namespace exercises {
namespace {

ls::Tensor part(const ls::Tensor& t, std::int64_t begin, std::int64_t end) { return t.slice(0, begin, end, 1); }

void exchange(par::ProcessGroup& group, const ls::Tensor& out, int to, const ls::Tensor& in, int from) {
  const auto sending = group.send(out, to), receiving = group.recv(in, from);
  receiving->wait();
  sending->wait();
}

}  // namespace

void all_reduce_by_gather(par::ProcessGroup& group, const ls::Tensor& t) {
  if (group.rank() != 0) {
    group.send(t, 0)->wait();
    group.recv(t, 0)->wait();
    return;
  }
  const ls::Tensor other = ls::zeros_like(t);
  for (int rank = 1; rank < group.size(); ++rank) {
    group.recv(other, rank)->wait();
    t.add_(other);
  }
  for (int rank = 1; rank < group.size(); ++rank) group.send(t, rank)->wait();
}

void all_reduce_by_ring(par::ProcessGroup& group, const ls::Tensor& t) {
  const int n = group.size(), rank = group.rank(), next = (rank + 1) % n, before = (rank + n - 1) % n;
  const auto chunk = [&](int c) {
    const int at = (c + 2 * n) % n;
    return part(t, t.numel() * at / n, t.numel() * (at + 1) / n);
  };
  for (int step = 0; step < n - 1; ++step) {
    const ls::Tensor mine = chunk(rank - step - 1), arrived = ls::zeros_like(mine);
    exchange(group, chunk(rank - step), next, arrived, before);
    mine.add_(arrived);
  }
  for (int step = 0; step < n - 1; ++step) exchange(group, chunk(rank + 1 - step), next, chunk(rank - step), before);
}

void all_reduce_by_halving_doubling(par::ProcessGroup& group, const ls::Tensor& t) {
  struct Range {
    std::int64_t begin, end;
  };
  std::vector<Range> sent;  // to the partner of each halving
  Range own{0, t.numel()};
  for (int distance = group.size() / 2; distance > 0; distance /= 2) {
    const int partner = group.rank() ^ distance;
    const std::int64_t middle = (own.begin + own.end) / 2;
    const Range low{own.begin, middle}, high{middle, own.end};
    const bool keeps_low = group.rank() < partner;
    sent.push_back(keeps_low ? high : low);
    own = keeps_low ? low : high;
    const ls::Tensor mine = part(t, own.begin, own.end), arrived = ls::zeros_like(mine);
    exchange(group, part(t, sent.back().begin, sent.back().end), partner, arrived, partner);
    mine.add_(arrived);
  }
  for (int distance = 1; distance < group.size(); distance *= 2) {
    const int partner = group.rank() ^ distance;
    const Range back = sent.back();
    sent.pop_back();
    exchange(group, part(t, own.begin, own.end), partner, part(t, back.begin, back.end), partner);
    own = {std::min(own.begin, back.begin), std::max(own.end, back.end)};
  }
}

}  // namespace exercises
