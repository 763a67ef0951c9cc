// Exercise 1: exact sums; messages that no buffer holds; bytes and messages of the closed form; none of the library's
// collectives.
#include <algorithm>
#include <array>

#include "harness.h"

namespace grader {
namespace {

using AllReduce = void (*)(par::ProcessGroup& group, const ls::Tensor& t);

struct Variant {
  std::array<std::int64_t, 2> counts = {24, 13};  // of elements
  std::int64_t per_rank = 1200;                   // elements of a rank's chunk where bytes are counted
};

const Variant& variant() {
  static const Variant chosen = [] {
    if (seed_of() == 0) return Variant();
    Dice dice(seed_of());
    return Variant{{24 + 8 * dice.roll(5), 9 + 2 * dice.roll(10)}, 1000 + dice.roll(500)};
  }();
  return chosen;
}

// Whole numbers, whose sums are exact in every order of additions.
ls::Tensor own_values(int rank, std::int64_t count) {
  return ls::arange(0, static_cast<double>(count), 1, {.dtype = ls::kFloat32}) * (rank + 1.0) + rank;
}

ls::Tensor sum_of_values(int size, std::int64_t count) {
  ls::Tensor sum = ls::zeros({count});
  for (int rank = 0; rank < size; ++rank) sum = sum + own_values(rank, count);
  return sum;
}

// Runs fn on `size` ranks. Throws Missing if a rank calls a collective of the library. The barriers are the grader's.
void run_messages(int size, const std::function<void(const Group& group)>& fn) {
  const ls::Trace trace = trace_of([&] { run_ranks(size, fn); });
  for (const ls::TraceEvent& event : trace.events) {
    const bool is_message = event.labels.to >= 0;
    require(event.kind != ls::TraceKind::kCollective || is_message || event.name == "barrier", size,
            " ranks: the library's ", event.name, " is called: use send and recv alone");
  }
}

void require_sum(AllReduce all_reduce, const Group& group, std::int64_t count) {
  const ls::Tensor have = own_values(group->rank(), count), want = sum_of_values(group->size(), count);
  all_reduce(*group, have);
  group->barrier();
  const auto is = have.span<float>(), expected = want.span<float>();
  const auto [wrong, right] = std::mismatch(is.begin(), is.end(), expected.begin());
  if (wrong == is.end()) return;
  throw Missing(text(group->size(), " ranks, ", count, " elements: element ", wrong - is.begin(), " on rank ",
                     group->rank(), " is ", *wrong, ", expected ", *right));
}

std::string check_sums(AllReduce all_reduce, const std::vector<int>& sizes) {
  for (const int size : sizes) {
    for (const std::int64_t count : variant().counts)
      run_messages(size, [&](const Group& group) { require_sum(all_reduce, group, count); });
  }
  return text(variant().counts[0], " and ", variant().counts[1], " elements");
}

// A send of a small message is complete once its bytes are in a buffer; a send of these messages only once they are received.
std::string check_large_messages(AllReduce all_reduce) {
  constexpr std::int64_t kLarge = 1 << 17;
  try {
    run_messages(4, [&](const Group& group) { require_sum(all_reduce, group, kLarge); });
  } catch (const ls::CommTimeout&) {
    throw Missing(text("4 ranks, ", kLarge,
                       " elements: it hangs. A large message is not buffered: its send is complete ",
                       "when the other rank has received it. Start the recv before you wait for the send"));
  }
  return text(kLarge, " elements, which no buffer holds");
}

constexpr int kRanks = 4;
std::int64_t bytes() { return kRanks * variant().per_rank * 4; }

Links count_links(AllReduce all_reduce) {
  Links links;
  run_messages(kRanks, [&](const Group& group) {
    all_reduce(*group, own_values(group->rank(), kRanks * variant().per_rank));
    add_links(links, group);
  });
  return links;
}

// No other links than those of `want` may be used.
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
  return text("score: ", busiest, " bytes sent by the busiest of ", kRanks, " ranks, for P = ", bytes());
}

std::string check_gather() {
  Links want;
  for (int rank = 1; rank < kRanks; ++rank) want[{rank, 0}] = want[{0, rank}] = {bytes(), 1};
  return check_links(count_links(exercises::all_reduce_by_gather), want);
}

std::string check_ring() {
  Links want;
  for (int rank = 0; rank < kRanks; ++rank)
    want[{rank, (rank + 1) % kRanks}] = {2 * (kRanks - 1) * bytes() / kRanks, 2 * (kRanks - 1)};
  return check_links(count_links(exercises::all_reduce_by_ring), want);
}

// Each partner gets two messages. Which one gets the larger part is open; the total is the ring's.
std::string check_halving_doubling() {
  const Links have = count_links(exercises::all_reduce_by_halving_doubling);
  Links want;
  for (int rank = 0; rank < kRanks; ++rank) {
    const Sent all = sent_by(have, rank);
    require(all.bytes == 2 * (kRanks - 1) * bytes() / kRanks, "rank ", rank, " sent ", all.bytes, " bytes, expected ",
            2 * (kRanks - 1) * bytes() / kRanks);
    for (int distance = 1; distance < kRanks; distance *= 2) {
      const auto found = have.find({rank, rank ^ distance});
      want[{rank, rank ^ distance}] = {found == have.end() ? 0 : found->second.bytes, 2};
    }
  }
  return check_links(have, want);
}

}  // namespace

std::vector<Check> checks(const std::string&, const std::string&) {
  struct Way {
    std::string name;
    AllReduce all_reduce;
    std::vector<int> sizes;
    std::string (*check_bytes)();
  };
  const std::array<Way, 3> ways = {
      {{"gather and broadcast", exercises::all_reduce_by_gather, {2, 3, 4}, check_gather},
       {"ring", exercises::all_reduce_by_ring, {2, 3, 4}, check_ring},
       {"halving-doubling", exercises::all_reduce_by_halving_doubling, {2, 4, 8}, check_halving_doubling}}};
  print_task(text("sums of ", variant().counts[0], " and ", variant().counts[1], " elements; P = ", bytes(), " bytes"));
  std::vector<Check> all;
  for (const Way& way : ways) {
    all.push_back({way.name + ": sums", [way] { return check_sums(way.all_reduce, way.sizes); }});
    all.push_back({way.name + ": large messages", [way] { return check_large_messages(way.all_reduce); }});
    all.push_back({way.name + ": bytes, messages", way.check_bytes});
  }
  return all;
}

}  // namespace grader
