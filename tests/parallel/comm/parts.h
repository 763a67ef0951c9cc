// The expected results of collectives on tensors that contain a part for each rank: all_gather, reduce_scatter and
// all_to_all in place and apart, in communication memory and elsewhere, for any backend.
#pragma once

#include "tests/parallel/comm/collectives.h"

// Checks all_gather and reduce_scatter between `whole` and `part`, which may be part rank() of `whole`.
inline void check_whole_and_part(const Group& group, const ls::Tensor& whole, const ls::Tensor& part,
                                 const std::string& what) {
  using ls::parallel::ReduceOp;
  const int n = group->size(), rank = group->rank();
  const ls::DType dtype = whole.dtype();
  const std::int64_t count = part.numel(), all = n * count, first = rank * count;
  std::vector<ls::Tensor> parts;
  for (int r = 0; r < n; ++r) parts.push_back(given_tensor(r, {count}, dtype));
  part.copy_(parts[static_cast<std::size_t>(rank)]);
  group->all_gather(whole, part)->wait();
  expect_same(whole, ls::cat(parts, 0), "all_gather " + what);
  expect_same(part, parts[static_cast<std::size_t>(rank)], "in of all_gather " + what);

  const auto check = [&](const ls::Tensor& want, const std::string& op, const auto& start) {
    const ls::Tensor own = given_tensor(rank, {all}, dtype);
    whole.copy_(own);
    start()->wait();
    expect_same(part, want.narrow(0, first, count), op + what);
    for (const auto& [begin, end] : {std::pair{std::int64_t{0}, first}, {first + count, all}})
      expect_same(whole.narrow(0, begin, end - begin), own.narrow(0, begin, end - begin), "other parts, " + op + what);
  };
  const double scale = whole.is_floating_point() ? 0.25 : 1;  // exact in all formats
  check((combined(n, {all}, dtype, ReduceOp::kSum).to(ls::kFloat64) * scale).to(dtype), "reduce_scatter_scaled ",
        [&] { return group->reduce_scatter_scaled(part, whole, scale); });
  check(combined(n, {all}, dtype, ReduceOp::kMax), "reduce_scatter ",
        [&] { return group->reduce_scatter(part, whole, ReduceOp::kMax); });
}

// Checks parts of `count` elements, with tensors on `device`.
inline void check_parts(const Group& group, std::int64_t count, ls::DType dtype, const ls::Device& device = {}) {
  const int n = group->size(), rank = group->rank();
  const std::int64_t all = n * count;
  const ls::TensorOptions options{.dtype = dtype, .device = device};
  // Elements around the tensors show whether they are overwritten. The first one makes addresses odd.
  const ls::Tensor memory = group->empty({all + count + 4}, dtype, device),
                   other = group->empty({all + 2}, dtype, device), outside = ls::full({all + 2}, 77, options),
                   outside_part = ls::full({count}, 77, options);
  memory.fill_(77);
  other.fill_(77);
  const std::string what = std::string(ls::name(dtype)) + ", parts of " + std::to_string(count) + ", ";
  for (const bool is_direct : {true, false}) {
    const ls::Tensor whole = is_direct ? memory.narrow(0, 1, all) : outside.narrow(0, 1, all);
    const std::string of = is_direct ? "whole in communication memory, part " : "whole outside, part ";
    check_whole_and_part(group, whole, whole.narrow(0, rank * count, count), what + of + "in place");
    check_whole_and_part(group, whole, memory.narrow(0, all + 3, count), what + of + "in communication memory");
    check_whole_and_part(group, whole, other.narrow(0, 1, count), what + of + "in another segment");
    check_whole_and_part(group, whole, outside_part, what + of + "outside");
    std::vector<ls::Tensor> sent, received;
    for (int r = 0; r < n; ++r) {
      sent.push_back(given_tensor(10 * rank + r, {count}, dtype));
      received.push_back(given_tensor(10 * r + rank, {count}, dtype));
    }
    const ls::Tensor to = other.narrow(0, 1, all);
    whole.copy_(ls::cat(sent, 0));
    group->all_to_all(to, whole)->wait();
    expect_same(to, ls::cat(received, 0), "all_to_all " + what + of);
    expect_same(whole, ls::cat(sent, 0), "in of all_to_all " + what + of);
  }
  for (const ls::Tensor& edge :
       {memory.narrow(0, 0, 1), memory.narrow(0, all + 1, 2), memory.narrow(0, all + count + 3, 1),
        other.narrow(0, 0, 1), other.narrow(0, all + 1, 1), outside.narrow(0, 0, 1), outside.narrow(0, all + 1, 1)})
    expect_same(edge, ls::full(edge.shape(), 77, {.dtype = dtype}), "elements around tensors, " + what);
}

// Checks that reduce_scatter_scaled has the bits of all_reduce_scaled where sums and products are rounded.
inline void check_rounding(const Group& group) {
  const int n = group->size(), rank = group->rank();
  for (const ls::DType dtype : {ls::kFloat32, ls::kFloat64, ls::kFloat16, ls::kBFloat16}) {
    for (const std::int64_t count : {3, 1001, 40'003}) {
      const ls::Tensor values = ls::sin(ls::arange(0, n * count, 1, {.dtype = ls::kFloat64}) * (1.0 + rank)).to(dtype),
                       memory = group->empty({n * count}, dtype), want = values.clone(),
                       part = memory.narrow(0, rank * count, count), outside = ls::zeros({count}, {.dtype = dtype});
      memory.copy_(values);
      group->all_reduce_scaled(want, 1.0 / 3)->wait();
      group->reduce_scatter_scaled(outside, values, 1.0 / 3)->wait();
      group->reduce_scatter_scaled(part, memory, 1.0 / 3)->wait();
      expect_same(outside, want.narrow(0, rank * count, count), "reduce_scatter_scaled");
      expect_same(part, want.narrow(0, rank * count, count), "reduce_scatter_scaled in place");
    }
  }
}

// Checks that each rank sends (n-1) / n of the bytes in an all_gather and in a reduce_scatter, equally to all others.
inline void check_traffic_of_parts(const Group& group) {
  const int n = group->size();
  const std::int64_t count = 1003;
  const ls::Tensor whole = group->empty({n * count}), part = whole.narrow(0, group->rank() * count, count);
  whole.fill_(1);
  const ls::parallel::CallOptions options{.phase = ls::parallel::Phase::kOffload};
  for (const bool gathers : {true, false}) {
    group->traffic().clear();
    (gathers ? group->all_gather(whole, part, options) : group->reduce_scatter_scaled(part, whole, 0.5, options))
        ->wait();
    CHECK(group->traffic().links().size() == static_cast<std::size_t>(n - 1));
    for (const ls::parallel::LinkTraffic& link : group->traffic().links()) {
      CHECK(link.from == group->rank());
      CHECK(link.bytes == count * 4);
      CHECK(std::string(ls::parallel::name(link.phase)) == "offload");
    }
  }
}

// Checks that ranks that gather units of two names get an error that names both. Afterwards the group has failed.
inline void check_other_name(const Group& group) {
  const ls::Tensor all = group->empty({group->size(), 5}), own = group->empty({5});
  group->all_gather(all, own, {.name = "unit 0", .id = 3})->wait();
  const std::string error = error_of<ls::CommError>(
      [&] { group->all_gather(all, own, {.name = group->rank() == 0 ? "unit 1" : "unit 2"})->wait(); });
  const bool names_both = contains(error, "for \"unit 1\"") && contains(error, "for \"unit 2\"");
  CHECK_MESSAGE((names_both || contains(error, "another rank reports")), error);
}
