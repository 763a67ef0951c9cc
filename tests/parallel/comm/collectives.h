// The expected results of every collective, for any backend. Inputs are integers, so that sums are exact and compared
// bitwise.
#pragma once

#include <cstdlib>
#include <random>

#include "tests/support/groups.h"

// Element i of the input of rank r.
inline double given(int rank, std::int64_t i) { return static_cast<double>((i * 7 + rank * 13) % 11 - rank % 3); }

// A tensor of `shape` with elements given(rank, i); if `strided`, every second column of a wider tensor.
inline ls::Tensor given_tensor(int rank, const ls::Shape& shape, ls::DType dtype, bool strided = false,
                               const ls::Device& device = {}) {
  ls::Tensor out;
  if (strided) {
    ls::Shape wide = shape;
    wide[wide.size() - 1] *= 2;
    out = ls::zeros(wide, {.dtype = dtype, .device = device}).slice(-1, 0, wide.back(), 2);
  } else {
    out = ls::zeros(shape, {.dtype = dtype, .device = device});
  }
  constexpr std::int64_t kPeriod = 5 * 11;  // of both formulas; the library repeats it faster than a loop here
  std::vector<double> values;
  for (std::int64_t i = 0; i < kPeriod; ++i)
    values.push_back(dtype == ls::kUInt8 ? static_cast<double>((i + rank) % 5) : given(rank, i));
  const ls::Tensor repeated =
      ls::from_memory<double>(values, {1, kPeriod}).expand({out.numel() / kPeriod + 1, kPeriod});
  out.copy_(repeated.flatten().narrow(0, 0, out.numel()).reshape(shape));
  return out;
}

// The expected reduction of the ranks' given_tensor, computed in f64.
inline ls::Tensor combined(int size, const ls::Shape& shape, ls::DType dtype, ls::parallel::ReduceOp op) {
  using ls::parallel::ReduceOp;
  ls::Tensor sum = given_tensor(0, shape, dtype).to(ls::kFloat64);
  for (int r = 1; r < size; ++r) {
    const ls::Tensor next = given_tensor(r, shape, dtype).to(ls::kFloat64);
    if (op == ReduceOp::kMin)
      sum = ls::minimum(sum, next);
    else if (op == ReduceOp::kMax)
      sum = ls::maximum(sum, next);
    else if (op == ReduceOp::kProduct)
      sum = sum * next;
    else
      sum = sum + next;
  }
  return sum.to(dtype);
}

inline void expect_same(const ls::Tensor& result, const ls::Tensor& want, const std::string& what) {
  const ls::Tensor have = result.to("cpu");
  const bool same = same_bits(have, want);
  CHECK_MESSAGE(same,
                what << ": " << have.to_string().substr(0, 200) << " instead of " << want.to_string().substr(0, 200));
}

inline const std::vector<ls::DType> kAllDTypes = {ls::kFloat32, ls::kFloat64, ls::kFloat16, ls::kBFloat16,
                                                  ls::kInt32,   ls::kInt64,   ls::kUInt8};

// Checks every operation on one shape and dtype, with tensors on `device`.
inline void check_collectives(const Group& group, std::int64_t rows, ls::DType dtype, bool strided,
                              const ls::Device& device = {}) {
  using ls::parallel::ReduceOp;
  const int n = group->size(), rank = group->rank();
  const ls::Shape shape = {rows, 3};
  const std::string what = std::string(ls::name(dtype)) + " of " + std::to_string(rows) + " rows";
  for (const ReduceOp op : {ReduceOp::kSum, ReduceOp::kMin, ReduceOp::kMax}) {
    const ls::Tensor t = given_tensor(rank, shape, dtype, strided, device);
    group->all_reduce(t, op)->wait();
    expect_same(t, combined(n, shape, dtype, op), "all_reduce " + what);
  }
  for (int root = 0; root < n; ++root) {
    const ls::Tensor b = given_tensor(rank, shape, dtype, strided, device);
    group->broadcast(b, root)->wait();
    expect_same(b, given_tensor(root, shape, dtype), "broadcast " + what);

    const ls::Tensor r = given_tensor(rank, shape, dtype, strided, device);
    group->reduce(r, root)->wait();
    expect_same(r, rank == root ? combined(n, shape, dtype, ReduceOp::kSum) : given_tensor(rank, shape, dtype),
                "reduce " + what);

    std::vector<ls::Tensor> outs, ins;
    for (int i = 0; i < n && rank == root; ++i) {
      outs.push_back(given_tensor(99, shape, dtype, strided, device));
      ins.push_back(given_tensor(i + 100, shape, dtype, strided, device));
    }
    group->gather(outs, given_tensor(rank, shape, dtype, strided, device), root)->wait();
    for (std::size_t i = 0; i < outs.size(); ++i)
      expect_same(outs[i], given_tensor(static_cast<int>(i), shape, dtype), "gather " + what);
    const ls::Tensor s = given_tensor(98, shape, dtype, strided, device);
    group->scatter(s, ins, root)->wait();
    expect_same(s, given_tensor(rank + 100, shape, dtype), "scatter " + what);
  }
  std::vector<ls::Tensor> parts, mine, received;
  for (int i = 0; i < n; ++i) {
    parts.push_back(given_tensor(i, shape, dtype));
    mine.push_back(given_tensor(10 * rank + i, shape, dtype, false, device));
    received.push_back(given_tensor(10 * i + rank, shape, dtype));
  }
  const ls::Tensor all = given_tensor(97, {rows * n, 3}, dtype, strided, device);
  group->all_gather(all, given_tensor(rank, shape, dtype, strided, device))->wait();
  expect_same(all, ls::cat(parts, 0), "all_gather " + what);

  const ls::Tensor to = given_tensor(96, {rows * n, 3}, dtype, strided, device);
  group->all_to_all(to, ls::cat(mine, 0))->wait();
  expect_same(to, ls::cat(received, 0), "all_to_all " + what);

  const ls::Tensor scattered = given_tensor(95, shape, dtype, strided, device);
  group->reduce_scatter(scattered, given_tensor(rank, {rows * n, 3}, dtype, strided, device))->wait();
  expect_same(scattered, combined(n, {rows * n, 3}, dtype, ReduceOp::kSum).narrow(0, rank * rows, rows),
              "reduce_scatter " + what);

  const int next = (rank + 1) % n, previous = (rank + n - 1) % n;
  if (n > 1) {
    const ls::Tensor received_one = given_tensor(94, shape, dtype, strided, device);
    const auto sent = group->send(given_tensor(rank, shape, dtype, strided, device), next, 5);
    const auto got = group->recv(received_one, previous, 5);
    sent->wait();
    got->wait();
    expect_same(received_one, given_tensor(previous, shape, dtype), "send, recv " + what);
  }
  group->barrier();
}

// Checks cases that check_collectives leaves out: parts of different sizes, and products, which soon exceed the range
// of a format.
inline void check_uneven_and_products(const Group& group, const ls::Device& device = {}) {
  const int n = group->size(), rank = group->rank();
  const ls::Tensor in = ls::full({n * (n + 1) / 2, 2}, 1.0 * rank, {.device = device}),
                   out = ls::zeros({n * (rank + 1), 2}, {.device = device});
  std::vector<std::int64_t> parts;  // rank r gets r + 1 rows
  for (int r = 0; r < n; ++r) parts.push_back(r + 1);
  const std::vector<std::int64_t> own(static_cast<std::size_t>(n), rank + 1);
  group->all_to_all(out, in, {.out_splits = own, .in_splits = parts})->wait();
  for (int from = 0; from < n; ++from) {
    const ls::Tensor part = out.narrow(0, from * (rank + 1), rank + 1);
    CHECK(part.min().item<double>() == from);
    CHECK(part.max().item<double>() == from);
  }
  double want = 1;
  for (int r = 0; r < n; ++r) want *= r + 2.0;
  for (const std::int64_t count : {5, 50'000}) {
    const ls::Tensor product = ls::full({count}, rank + 2.0, {.device = device});
    group->all_reduce(product, ls::parallel::ReduceOp::kProduct)->wait();
    CHECK(product.min().item<double>() == want);
    CHECK(product.max().item<double>() == want);
  }
}

// Checks that bools are reduced by kMax, kMin and kProduct, and refused by the sums.
inline void check_bools(const Group& group, const ls::Device& device = {}) {
  using ls::parallel::ReduceOp;
  const int n = group->size(), rank = group->rank();
  const auto is_set = [](int r, std::int64_t i) { return i % 3 == 0 || (i % 3 == 1 && i / 3 % 2 == r % 2); };
  const auto bools = [&](std::int64_t count, const std::function<bool(std::int64_t)>& value) {
    std::vector<std::uint8_t> bytes;
    for (std::int64_t i = 0; i < count; ++i) bytes.push_back(value(i) ? 1 : 0);
    return ls::from_memory<std::uint8_t>(bytes, {count}).to(ls::kBool).to(device);
  };
  for (const std::int64_t count : {std::int64_t{0}, std::int64_t{7}, std::int64_t{30'000}}) {
    for (const ReduceOp op : {ReduceOp::kMax, ReduceOp::kMin, ReduceOp::kProduct}) {
      const auto combined_at = [&](std::int64_t i) {
        bool any = false, all = true;
        for (int r = 0; r < n; ++r) any = any || is_set(r, i), all = all && is_set(r, i);
        return op == ReduceOp::kMax ? any : all;
      };
      const ls::Tensor t = bools(count, [&](std::int64_t i) { return is_set(rank, i); });
      group->all_reduce(t, op)->wait();
      expect_same(t, bools(count, combined_at).to("cpu"), "all_reduce of bool");
      const ls::Tensor own = bools(count, [&](std::int64_t i) { return is_set(rank, i); });
      group->reduce(own, 0, op)->wait();
      expect_same(own,
                  bools(count, [&](std::int64_t i) { return rank == 0 ? combined_at(i) : is_set(rank, i); }).to("cpu"),
                  "reduce of bool");
      const ls::Tensor parts = bools(count * n, [&](std::int64_t i) { return is_set(rank, i); });
      const ls::Tensor part = bools(count, [](std::int64_t) { return false; });
      group->reduce_scatter(part, parts, op)->wait();
      expect_same(part, bools(count, [&](std::int64_t i) { return combined_at(rank * count + i); }).to("cpu"),
                  "reduce_scatter of bool");
    }
  }
  for (const ReduceOp op : {ReduceOp::kSum, ReduceOp::kAvg})
    CHECK(contains(error_of([&] { group->all_reduce(bools(3, [](std::int64_t) { return true; }), op); }),
                   "all_reduce: (3) bool"));
}

// Checks operations on more data than the staging memory holds.
inline void check_pieces(const Group& group) {
  const std::int64_t count = 2'500'000;
  const int n = group->size(), rank = group->rank();
  const ls::Tensor sum = ls::arange(0, count, 1, {.dtype = ls::kFloat32}) * (rank + 1.0);
  group->all_reduce(sum)->wait();
  expect_same(sum, ls::arange(0, count, 1, {.dtype = ls::kFloat32}) * (n * (n + 1) / 2.0), "all_reduce");
  const ls::Tensor all = ls::empty({n, count}), own = ls::arange(0, count, 1, {.dtype = ls::kFloat32}) + 1.0 * rank;
  group->all_gather(all, own)->wait();
  for (int r = 0; r < n; ++r)
    expect_same(all[r], ls::arange(0, count, 1, {.dtype = ls::kFloat32}) + 1.0 * r, "all_gather");
  const ls::Tensor part = ls::empty({count});
  group->reduce_scatter(part, all)->wait();
  expect_same(part, (ls::arange(0, count, 1, {.dtype = ls::kFloat32}) + 1.0 * rank) * (1.0 * n), "reduce_scatter");
}

// Number of random collectives, fewer under sanitizers; scripts/random_collectives.sh sets more than ctest.
inline int random_collectives(int otherwise) {
  const char* const text = std::getenv("LOCKSTEP_RANDOM_COLLECTIVES");
  return text ? std::atoi(text) : std::min(otherwise, std::max(3000, otherwise / LOCKSTEP_SLOWDOWN));
}

// Runs `operations` of random kinds and sizes, with or without communication memory, and waits for them at random.
inline void check_random_collectives(const Group& group, int operations) {
  using ls::parallel::ReduceOp;
  const int size = group->size();
  std::mt19937 same(5), own(static_cast<unsigned>(group->rank()));  // draws common to all ranks, and draws of this rank
  const ls::Tensor region = group->empty({4096}, ls::kFloat32), all_parts = group->empty({size * 2048}, ls::kFloat32);
  struct Pending {
    ls::Tensor tensor;
    double least, most;
    std::shared_ptr<ls::parallel::Work> work;
  };
  std::vector<Pending> pending;
  const auto wait_for_all = [&](std::size_t keep) {
    while (pending.size() > keep) {
      const std::size_t k = own() % pending.size();
      pending[k].work->wait();
      const bool right = pending[k].tensor.min().item<double>() == pending[k].least &&
                         pending[k].tensor.max().item<double>() == pending[k].most;
      REQUIRE(right);
      pending.erase(pending.begin() + static_cast<std::ptrdiff_t>(k));
    }
  };
  for (int i = 0; i < operations; ++i) {
    const unsigned rare = same() % 1000, most = rare == 0 ? 700'000 : rare < 20 ? 40'000 : 1500;
    const std::int64_t count = 1 + static_cast<std::int64_t>(same() % most);
    const int kind = static_cast<int>(same() % 8), root = static_cast<int>(same() % static_cast<unsigned>(size));
    const double value = static_cast<double>(same() % 100);
    const bool is_reduce = kind == 3 && count <= 4096, has_parts = kind >= 6 && count <= 2048;
    if (is_reduce || has_parts) wait_for_all(0);  // the operations share memory regions
    if (has_parts) {
      const ls::Tensor whole = all_parts.narrow(0, 0, size * count),
                       own_part = whole.narrow(0, group->rank() * count, count);
      whole.fill_(value + group->rank());
      const double half = (size * value + size * (size - 1) / 2) / 2;
      if (kind == 6)
        pending.push_back({whole, value, value + size - 1, group->all_gather(whole, own_part)});
      else
        pending.push_back({own_part, half, half, group->reduce_scatter_scaled(own_part, whole, 0.5)});
      wait_for_all(same() % 8);
      continue;
    }
    const ls::Tensor t = is_reduce ? region.narrow(0, 0, count) : ls::empty({count});
    t.fill_(value + group->rank());
    const double sum = size * value + size * (size - 1) / 2, last = value + size - 1;
    if (kind == 1) {
      pending.push_back({t, value + root, value + root, group->broadcast(t, root)});
    } else if (kind == 2) {
      pending.push_back({t, last, last, group->all_reduce(t, ReduceOp::kMax)});
    } else if (kind == 4) {
      const ls::Tensor all = ls::empty({size, count});
      pending.push_back({all, value, last, group->all_gather(all, t)});
    } else if (kind == 5) {
      const ls::Tensor all = ls::full({size, count}, value + group->rank());
      pending.push_back({t, sum, sum, group->reduce_scatter(t, all)});
    } else {
      pending.push_back({t, sum, sum, group->all_reduce(t)});
    }
    wait_for_all(same() % 8);
  }
  wait_for_all(0);
}
