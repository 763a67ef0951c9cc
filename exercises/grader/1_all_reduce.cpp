// Exercise 1: sums that are exact, bytes and messages of the closed form.
#include "harness.h"

namespace grader {
namespace {

using AllReduce = void (*)(par::ProcessGroup& group, const ls::Tensor& t);

// Whole numbers, so that every order of additions gives the same bits.
ls::Tensor own_values(int rank, std::int64_t count) {
  return ls::arange(0, static_cast<double>(count), 1, {.dtype = ls::kFloat32}) * (rank + 1.0) + rank;
}

std::string check_sums(AllReduce all_reduce, const std::vector<int>& sizes) {
  for (const int size : sizes) {
    for (const std::int64_t count : {24, 13}) {
      ls::Tensor want = ls::zeros({count});
      for (int rank = 0; rank < size; ++rank) want = want + own_values(rank, count);
      run_ranks(size, [&](const Group& group) {
        const ls::Tensor t = own_values(group->rank(), count);
        all_reduce(*group, t);
        group->barrier();
        for (std::int64_t i = 0; i < count; ++i)
          require(
              t.to_vector<float>()[static_cast<std::size_t>(i)] == want.to_vector<float>()[static_cast<std::size_t>(i)],
              size, " ranks, ", count, " elements: element ", i, " on rank ", group->rank(), " is ", t[i].item<float>(),
              ", expected ", want[i].item<float>());
      });
    }
  }
  return "24 and 13 elements";
}

constexpr int kRanks = 4;
constexpr std::int64_t kCount = 4800, kBytes = kCount * 4;

Links count_links(AllReduce all_reduce) {
  Links links;
  run_ranks(kRanks, [&](const Group& group) {
    all_reduce(*group, own_values(group->rank(), kCount));
    add_links(links, group);
  });
  return links;
}

// Every link that `want` does not name must be silent.
std::string check_links(const Links& have, const Links& want) {
  for (int from = 0; from < kRanks; ++from) {
    for (int to = 0; to < kRanks; ++to) {
      const auto find = [&](const Links& links) {
        const auto found = links.find({from, to});
        return found == links.end() ? Sent() : found->second;
      };
      const Sent is = find(have), expected = find(want);
      require(is.bytes == expected.bytes && is.messages == expected.messages, "rank ", from, " sent rank ", to, " ",
              is.bytes, " bytes in ", is.messages, " messages, expected ", expected.bytes, " in ", expected.messages);
    }
  }
  std::int64_t busiest = 0;
  for (int rank = 0; rank < kRanks; ++rank) busiest = std::max(busiest, sent_by(have, rank).bytes);
  return text("score: ", busiest, " bytes sent by the busiest of ", kRanks, " ranks, for P = ", kBytes);
}

std::string check_gather() {
  Links want;
  for (int rank = 1; rank < kRanks; ++rank) want[{rank, 0}] = want[{0, rank}] = {kBytes, 1};
  return check_links(count_links(exercises::all_reduce_by_gather), want);
}

std::string check_ring() {
  Links want;
  for (int rank = 0; rank < kRanks; ++rank)
    want[{rank, (rank + 1) % kRanks}] = {2 * (kRanks - 1) * kBytes / kRanks, 2 * (kRanks - 1)};
  return check_links(count_links(exercises::all_reduce_by_ring), want);
}

// Which partner gets the larger part is open: two messages for each, and as many bytes in all as on the ring.
std::string check_halving_doubling() {
  const Links have = count_links(exercises::all_reduce_by_halving_doubling);
  Links want;
  for (int rank = 0; rank < kRanks; ++rank) {
    const Sent all = sent_by(have, rank);
    require(all.bytes == 2 * (kRanks - 1) * kBytes / kRanks, "rank ", rank, " sent ", all.bytes, " bytes, expected ",
            2 * (kRanks - 1) * kBytes / kRanks);
    for (int distance = 1; distance < kRanks; distance *= 2) {
      const auto found = have.find({rank, rank ^ distance});
      want[{rank, rank ^ distance}] = {found == have.end() ? 0 : found->second.bytes, 2};
    }
  }
  return check_links(have, want);
}

}  // namespace

std::vector<Check> checks(const std::string&, const std::string&) {
  return {
      {"gather and broadcast: sums",
       [] {
         return check_sums(exercises::all_reduce_by_gather, {2, 3, 4});
       }},
      {"gather and broadcast: bytes, messages", check_gather},
      {"ring: sums",
       [] {
         return check_sums(exercises::all_reduce_by_ring, {2, 3, 4});
       }},
      {"ring: bytes, messages", check_ring},
      {"halving-doubling: sums",
       [] {
         return check_sums(exercises::all_reduce_by_halving_doubling, {2, 4, 8});
       }},
      {"halving-doubling: bytes, messages", check_halving_doubling},
  };
}

}  // namespace grader
