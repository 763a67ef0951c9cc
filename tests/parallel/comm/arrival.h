// Reduction::kArrival adds in the order in which the ranks arrive, the same on all of them. Reduction::kOwnFirst adds
// each rank's own value first.
#pragma once

#include <algorithm>
#include <vector>

#include "tests/support/groups.h"

inline const std::vector<double> kValues = {1e8, 1, -1e8, 1};

// Starts the operation on the ranks of `order` one after another: each waits for a message from the rank before it.
template <class Start>
std::shared_ptr<ls::parallel::Work> start_in_order(const Group& group, const Group& messages,
                                                   const std::vector<int>& order, Start start) {
  const auto self = std::ranges::find(order, group->rank());
  const ls::Tensor token = ls::zeros({1});
  if (self != order.begin()) messages->recv(token, *(self - 1))->wait();
  auto work = start();
  if (self + 1 != order.end()) messages->send(token, *(self + 1))->wait();
  return work;
}

template <class T>
double sum_in_turn(const std::vector<int>& order) {
  T sum = 0;
  for (const int r : order) sum += static_cast<T>(kValues[static_cast<std::size_t>(r)]);
  return static_cast<double>(sum);
}

inline void check_orders(const Group& group) {
  const Group messages = group->split(0, group->rank());
  std::vector<int> order = {0, 1, 2, 3};
  const double mine = kValues[static_cast<std::size_t>(group->rank())];
  do {
    for (const std::int64_t count : {1, 20000, 300000}) {
      if (count > 1 && order[0] % 2 == 0) continue;  // test fewer orders of the large ones
      const ls::Tensor t = ls::full({count}, mine), memory = group->empty({count});
      memory.copy_(t);
      start_in_order(group, messages, order, [&] { return group->all_reduce(t); })->wait();
      start_in_order(group, messages, order, [&] {
        return group->all_reduce(memory, ls::parallel::ReduceOp::kAvg);
      })->wait();
      const double want = sum_in_turn<float>(order);
      for (const ls::Tensor& each : {t, memory * 4}) {
        CHECK(each.min().item<double>() == want);
        CHECK(each.max().item<double>() == want);
      }
    }
    const ls::Tensor part = ls::zeros({3});
    const ls::Tensor parts = group->empty({4, 3});
    parts.fill_(mine);
    for (const ls::Tensor& out : {part, parts[group->rank()]}) {
      start_in_order(group, messages, order, [&] { return group->reduce_scatter(out, parts); })->wait();
      CHECK(out.max().item<double>() == sum_in_turn<float>(order));
    }
  } while (std::ranges::next_permutation(order).found);
}

// Returns the result of kOwnFirst on this rank.
template <class T>
double sum_own_first(int rank) {
  std::vector<int> order = {rank};
  for (int r = 0; r < 4; ++r) {
    if (r != rank) order.push_back(r);
  }
  return sum_in_turn<T>(order);
}

inline void check_own_first(const Group& group) {
  const int rank = group->rank();
  const double mine = kValues[static_cast<std::size_t>(rank)], want = sum_own_first<float>(rank);
  for (const std::int64_t count : {1, 20000, 300000}) {  // one task, several, several pieces
    const ls::Tensor t = ls::full({count}, mine), memory = group->empty({count}), whole = ls::full({count}, rank);
    memory.copy_(t);
    group->all_reduce(t)->wait();
    group->all_reduce(memory, ls::parallel::ReduceOp::kAvg)->wait();
    group->all_reduce(whole)->wait();
    for (const ls::Tensor& each : {t, memory * 4}) {
      CHECK(each.min().item<double>() == want);
      CHECK(each.max().item<double>() == want);
    }
    CHECK(whole.min().item<double>() == 6);  // the sum of integers does not depend on the order
    CHECK(whole.max().item<double>() == 6);
  }
  const ls::Tensor part = ls::zeros({3}), at_root = ls::full({3}, mine);
  group->reduce_scatter(part, ls::full({4, 3}, mine))->wait();
  CHECK(part.max().item<double>() == want);
  const ls::Tensor parts = group->empty({4, 3});
  parts.fill_(mine);
  group->reduce_scatter_scaled(parts[rank], parts, 2)->wait();
  CHECK(parts[rank].max().item<double>() == 2 * want);
  group->reduce(at_root, 2)->wait();
  CHECK(at_root.max().item<double>() == (rank == 2 ? want : mine));
  const ls::Tensor numbers = ls::full({3}, rank, {.dtype = ls::kInt64});
  group->all_reduce(numbers)->wait();
  CHECK(numbers.max().item<int>() == 6);
}
