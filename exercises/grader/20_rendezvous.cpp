// Exercise 20: addresses, missing ranks, and one outcome for all ranks, whatever the time at which a rank starts. The store
// runs in simulated time, so that every run has the same order of requests.
#include <algorithm>
#include <condition_variable>
#include <mutex>

#include "harness.h"

namespace grader {
namespace {

using std::chrono::milliseconds;

constexpr int kTimeout = 300;  // in ms, as all times here
constexpr int kNever = -1;
constexpr int kMostRequests = 200;  // of a rank; more are a loop

// The store of all ranks. A request takes 1 ms. Requests run one at a time in the order of their times: each waits until
// every other rank has made its next request, or has ended.
class Schedule {
 public:
  explicit Schedule(const std::vector<int>& starts) {
    for (const int start : starts) ranks_.push_back({.is_ended = start == kNever, .clock = start});
  }

  std::string request(int rank, const par::StoreRequest& request, milliseconds timeout) {
    std::unique_lock lock(mutex_);
    Rank& own = ranks_[static_cast<std::size_t>(rank)];
    require(++own.requests <= kMostRequests, "rank ", rank, " makes more than ", kMostRequests,
            " requests: a get with a timeout waits, a loop of checks is not needed");
    own.request = &request;
    own.due = own.clock + 1;
    own.deadline = own.due + static_cast<int>(std::min<std::int64_t>(timeout.count(), 100000));
    choose();
    changed_.wait(lock, [&] { return own.is_chosen; });
    own.is_chosen = false;
    own.request = nullptr;
    if (!can_run(request)) throw ls::CommTimeout(text("the key ", request.keys.front(), " was not set in time"));
    return table_.request(request, milliseconds(1000));
  }

  void end(int rank) {
    const std::lock_guard lock(mutex_);
    ranks_[static_cast<std::size_t>(rank)].is_ended = true;
    choose();
  }

  int clock(int rank) const { return ranks_[static_cast<std::size_t>(rank)].clock; }
  int requests(int rank) const { return ranks_[static_cast<std::size_t>(rank)].requests; }

 private:
  struct Rank {
    bool is_ended = false, is_chosen = false;
    const par::StoreRequest* request = nullptr;  // null: the rank computes
    int clock = 0, due = 0, deadline = 0, requests = 0;
  };

  bool can_run(const par::StoreRequest& request) {
    const bool waits = request.op == par::StoreOp::kGet || request.op == par::StoreOp::kWait;
    return !waits || table_.check(request.keys);
  }

  // Lets the next rank run, if all have made a request.
  void choose() {
    Rank* next = nullptr;
    int earliest = 0;
    for (Rank& rank : ranks_) {
      if (rank.is_ended) continue;
      if (!rank.request) return;
      const int at = can_run(*rank.request) ? std::max(rank.due, now_) : rank.deadline;
      if (!next || at < earliest) next = &rank, earliest = at;
    }
    if (!next) return;
    next->clock = now_ = earliest;
    next->is_chosen = true;
    changed_.notify_all();
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<Rank> ranks_;
  par::InProcessStore table_;
  int now_ = 0;
};

// The store as one rank has it.
class RankStore final : public par::Store {
 public:
  RankStore(Schedule& schedule, int rank) : schedule_(schedule), rank_(rank) {}
  ~RankStore() override { schedule_.end(rank_); }
  std::string request(const par::StoreRequest& request, milliseconds timeout) override {
    return schedule_.request(rank_, request, timeout);
  }

 private:
  Schedule& schedule_;
  int rank_;
};

std::string list(const std::vector<int>& ranks) {
  std::string all;
  for (const int rank : ranks) all += (all.empty() ? "" : ", ") + std::to_string(rank);
  return all.empty() ? "none" : all;
}

std::string address_of(int rank) { return text("host", rank, ":", 4000 + rank); }

struct Outcome {
  int rank = 0;
  std::vector<std::string> addresses = {};
  std::vector<int> missing = {};
  bool is_complete = false;
  int time = 0;  // simulated, from the start of the rank to its end
  int requests = 0;

  std::string describe() const {
    return is_complete ? text("rank ", rank, " returns") : text("rank ", rank, " throws, missing: ", list(missing));
  }
};

// The outcome of every rank that starts. A rank whose start is kNever does not.
std::vector<Outcome> run(const std::vector<int>& starts) {
  const int size = static_cast<int>(starts.size());
  Schedule schedule(starts);
  std::vector<Outcome> all(starts.size());
  run_ranks(size, [&](const Group& group) {
    const int rank = group->rank();
    if (starts[static_cast<std::size_t>(rank)] == kNever) return;
    RankStore store(schedule, rank);
    Outcome& own = all[static_cast<std::size_t>(rank)];
    try {
      own.addresses = exercises::rendezvous(store, rank, size, address_of(rank), milliseconds(kTimeout));
      own.is_complete = true;
    } catch (const exercises::IncompleteGroup& error) {
      own.missing = error.missing;
    } catch (const ls::CommTimeout& error) {
      throw Missing(text("rank ", rank, " throws CommTimeout (", error.what(), "), expected IncompleteGroup"));
    }
  });
  std::vector<Outcome> started;
  for (int rank = 0; rank < size; ++rank) {
    const int start = starts[static_cast<std::size_t>(rank)];
    if (start == kNever) continue;
    Outcome& own = all[static_cast<std::size_t>(rank)];
    own.rank = rank, own.time = schedule.clock(rank) - start, own.requests = schedule.requests(rank);
    started.push_back(own);
  }
  return started;
}

std::string describe(const std::vector<int>& starts) {
  std::string all = text("timeout ", kTimeout, " ms, starts at ");
  for (std::size_t rank = 0; rank < starts.size(); ++rank)
    all += (rank == 0 ? "" : ", ") + (starts[rank] == kNever ? "never" : std::to_string(starts[rank]));
  return all + " ms: ";
}

void require_complete(const std::vector<int>& starts) {
  for (const Outcome& own : run(starts)) {
    require(own.is_complete, describe(starts), own.describe(), ", but all ranks arrive in time");
    require(own.addresses.size() == starts.size(), describe(starts), own.describe(), " ", own.addresses.size(),
            " addresses, expected ", starts.size());
    for (int rank = 0; rank < static_cast<int>(starts.size()); ++rank)
      require(own.addresses[static_cast<std::size_t>(rank)] == address_of(rank), describe(starts), "rank ", own.rank,
              " has ", own.addresses[static_cast<std::size_t>(rank)], " as the address of rank ", rank, ", expected ",
              address_of(rank));
  }
}

void require_missing(const std::vector<int>& starts, const std::vector<int>& missing) {
  for (const Outcome& own : run(starts)) {
    require(!own.is_complete && own.missing == missing, describe(starts), own.describe(),
            ", expected IncompleteGroup, missing: ", list(missing));
    require(own.time <= kTimeout + 60, describe(starts), "rank ", own.rank, " throws after ", own.time,
            " ms: all ranks together have one timeout");
  }
}

// Starts of `size` ranks, in an order of the seed, all within 100 ms.
std::vector<int> starts_of(int size) {
  std::vector<int> starts;
  for (int i = 0; i < size; ++i) starts.push_back(100 * i / size);
  if (seed_of() != 0) Dice(seed_of()).shuffle(starts);
  return starts;
}

int late_rank() { return seed_of() == 0 ? 2 : Dice(seed_of()).roll(4); }
std::vector<int> missing_ranks() {
  if (seed_of() == 0) return {1, 3};
  Dice dice(seed_of() + 1);
  const int first = dice.roll(4);
  return {first, first + 1 + dice.roll(4 - first)};
}

std::string check_complete() {
  for (const int size : {1, 2, 5}) require_complete(starts_of(size));
  std::vector<int> late = starts_of(4);
  late[static_cast<std::size_t>(late_rank())] = 250;
  require_complete(late);
  return "1, 2, 4 and 5 ranks";
}

std::string check_missing() {
  std::vector<int> starts = starts_of(5);
  for (const int rank : missing_ranks()) starts[static_cast<std::size_t>(rank)] = kNever;
  require_missing(starts, missing_ranks());
  return text("the others report ", list(missing_ranks()));
}

std::string check_late() {
  std::vector<int> starts = starts_of(4);
  starts[static_cast<std::size_t>(late_rank())] = 2 * kTimeout;
  require_missing(starts, {late_rank()});
  return text("rank ", late_rank(), ", which starts at ", 2 * kTimeout, " ms, throws, too");
}

// A rank starts about when the timeout of the others ends: all orders of requests occur.
std::string check_agreement() {
  int complete = 0, runs = 0;
  for (int start = kTimeout - 15; start <= kTimeout + 15; ++start, ++runs) {
    std::vector<int> starts = {0, 3, 7, 1};
    starts[static_cast<std::size_t>(late_rank())] = start;
    const std::vector<Outcome> all = run(starts);
    for (const Outcome& other : all)
      require(other.is_complete == all[0].is_complete && other.missing == all[0].missing, describe(starts),
              all[0].describe(), ", ", other.describe(), ". One key must decide for all ranks, and be set once");
    complete += all[0].is_complete ? 1 : 0;
  }
  return text(runs, " times of a start, ", complete, " of them early enough");
}

std::string check_requests() {
  constexpr int kRanks = 8, kMost = 2 * kRanks + 6;
  std::vector<int> missing = starts_of(kRanks);
  missing.back() = kNever;
  int most = 0;
  for (const std::vector<int>& starts : {starts_of(kRanks), missing}) {
    for (const Outcome& own : run(starts)) {
      require(own.requests <= kMost, describe(starts), "rank ", own.rank, " makes ", own.requests,
              " requests, expected ", kMost, " at most");
      require(own.requests > 0, "rank ", own.rank, " makes no request");
      most = std::max(most, own.requests);
    }
  }
  return text("at most ", most, " of a rank, for ", kRanks, " ranks");
}

}  // namespace

std::vector<Check> checks(const std::string&, const std::string&) {
  print_task(text("missing ranks ", list(missing_ranks()), " of 5; late rank ", late_rank(), " of 4; timeout ",
                  kTimeout, " ms"));
  return {{"all arrive: addresses", check_complete},
          {"missing ranks are named", check_missing},
          {"a rank that comes too late", check_late},
          {"one outcome for all ranks", check_agreement},
          {"requests to the store", check_requests}};
}

}  // namespace grader
