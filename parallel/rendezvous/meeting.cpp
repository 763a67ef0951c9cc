// The rendezvous: rank 0 serves a store at the endpoint, and all ranks run a registration over the store.
#include <algorithm>
#include <numeric>
#include <optional>
#include <thread>

#include "lockstep/parallel/rendezvous/formation_watch_internal.h"
#include "lockstep/parallel/rendezvous/limits_internal.h"
#include "lockstep/parallel/rendezvous/place_internal.h"
#include "lockstep/parallel/rendezvous/socket_internal.h"
#include "lockstep/parallel/rendezvous/store_client_internal.h"
#include "lockstep/tensor/byte_reader_internal.h"
#include "lockstep/tensor/check_internal.h"

namespace lockstep::parallel {

namespace {

using Clock = Deadline::Clock;
using std::chrono::milliseconds;

constexpr milliseconds kLastQuestion{300};  // limit of the final request: enough for a slow network

// At least kAttempt, so that a request just before the end receives its reply.
milliseconds time_left(Clock::time_point end) {
  return std::max(std::chrono::ceil<milliseconds>(end - Clock::now()), kAttempt);
}

// The retry budget. An endpoint of another run may be about to end: kStaleRun is granted to that run.
class Patience {
 public:
  Patience(const Place& place, milliseconds timeout)
      : where_("rendezvous at " + place.address), timeout_(timeout), deadline_(timeout),
        longest_(place.is_one_host ? kConnectPoll : kLongestConnectPoll) {}

  // Pauses before the next attempt, or throws if the budget is spent.
  void retry(const std::string& failure, bool is_foreign = false) {
    if (!is_foreign) foreign_since_.reset();
    if (is_foreign && !foreign_since_) foreign_since_ = Clock::now();
    deadline_.waited(kHandshakeDeadline);  // longest duration of an attempt
    if (is_foreign && (deadline_.passed() || Clock::now() - *foreign_since_ > kStaleRun))
      throw CommError(where_ + ": " + failure);
    last_ = failure;
    if (deadline_.passed()) throw CommTimeout(fmt::format("{}: {} (after {} ms)", where_, failure, timeout_.count()));
    std::this_thread::sleep_for(pause_);  // there is no notification when a process begins to listen
    pause_ = std::min(2 * pause_, longest_);
  }
  // The same after a look-up of a name without an address.
  void retry_look_up(const std::string& failure) {
    deadline_.waited(kLongestLookUp);
    retry(failure);
  }
  // The same with the failure of the previous attempt.
  void retry() { retry(last_.empty() ? "rank 0 did not arrive" : std::string(last_)); }

  const std::string& where() const { return where_; }

 private:
  std::string where_, last_;
  milliseconds timeout_;
  Deadline deadline_;
  milliseconds pause_ = kConnectPoll, longest_;
  std::optional<Clock::time_point> foreign_since_;
};

class Meeting {
 public:
  Meeting(const Place& place, milliseconds timeout)
      : place_(place), timeout_(timeout), end_(Clock::now() + timeout), patience_(place, timeout),
        meeting_place_(place.is_one_host ? make_unix_place(place) : make_tcp_place(place)) {}

  Rendezvous run() {
    while (!(place_.rank == 0 ? host() : join())) {
    }
    // After the timeout, requests are short: a disconnected host receives no reply.
    if (place_.rank != 0) call_store_->set_timeout(kLastQuestion);
    try {
      call_->wait_for_all(time_left(end_), timeout_);
    } catch (const CommTimeout&) {
      if (place_.rank == 0) let_others_hear(call_->entered());
      throw;
    } catch (const CommError&) {
      if (place_.rank == 0) let_others_hear(all_ranks());
      throw;
    }
    store_->set_timeout(timeout_);
    const bool holds_store = place_.rank == 0;
    const auto watch =
        std::make_shared<FormationWatch>(call_store_, std::move(will_), place_.rank, place_.size, holds_store);
    try {
      see_off();
    } catch (const CommTimeout& error) {
      watch->pass_on(error);
      throw;
    }
    return {.rank = place_.rank,
            .size = place_.size,
            .store = std::move(store_),
            .address = meeting_place_->own_address(),
            .watch = watch};
  }

 private:
  // Both return whether this rank has arrived; if not, run() tries again.
  bool host();
  bool join();
  bool enter(std::shared_ptr<Store> store, bool serves = false);
  void wait_for_next_call();
  void meet_other_host();
  void see_off();
  std::vector<int> all_ranks() const;
  void let_others_hear(const std::vector<int>& ranks);
  MeetingPlace::Joined try_to_join() {
    return meeting_place_->join(Deadline(std::min<milliseconds>(time_left(end_), kHandshakeDeadline)));
  }

  Place place_;
  milliseconds timeout_;
  Clock::time_point end_;
  Patience patience_;
  std::unique_ptr<MeetingPlace> meeting_place_;
  std::shared_ptr<Store> store_;
  std::shared_ptr<PrefixStore> call_store_;
  std::optional<Registration> call_;
  std::unique_ptr<LastWill> will_;
};

constexpr const char* kCallPrefix = "rendezvous/";
std::string bye_of(int rank) { return "bye/" + std::to_string(rank); }

bool Meeting::host() {
  std::shared_ptr<Store> store;
  try {
    store = meeting_place_->host();
  } catch (const UnknownHost& error) {
    patience_.retry_look_up(error.what());
    return false;
  } catch (CommError& error) {
    error.add_context(patience_.where());
    throw;
  }
  if (store) return enter(std::move(store), /*serves=*/true);
  meet_other_host();
  return false;
}

// Called if rank 0's address is taken, either for good or by a run that is ending.
void Meeting::meet_other_host() {
  MeetingPlace::Joined other = try_to_join();
  const std::string taken = meeting_place_->taken();
  if (!other.store) return patience_.retry(taken.empty() ? other.failure : taken, /*is_foreign=*/true);
  try {
    other.store->get(kCallPrefix + Registration::key_of(0), std::min<milliseconds>(time_left(end_), kStaleRun));
  } catch (const CommError&) {  // the other rank 0 did not enter, or has ended
    return patience_.retry(taken.empty() ? "another rank 0 has the address" : taken);
  }
  enter(std::move(other.store));  // throws an error naming the process that has entered as rank 0
}

bool Meeting::join() {
  MeetingPlace::Joined joined;
  try {
    joined = try_to_join();
  } catch (const UnknownHost& error) {
    patience_.retry_look_up(error.what());
    return false;
  } catch (CommError& error) {
    error.add_context(patience_.where());
    throw;
  }
  if (joined.store) return enter(std::move(joined.store));
  patience_.retry(joined.failure, joined.is_foreign);
  return false;
}

bool Meeting::enter(std::shared_ptr<Store> store, bool serves) {
  store->set_timeout(time_left(end_));
  call_store_ = std::make_shared<PrefixStore>(kCallPrefix, store);
  call_.emplace(*call_store_, place_.rank, place_.size, place_.backend, patience_.where());
  bool is_over = false;
  try {
    is_over = call_->is_over();
  } catch (const CommError&) {  // the server of an earlier group ended meanwhile
    patience_.retry();
    return false;
  }
  if (is_over) {
    if (serves) {  // another rank died before rank 0 entered: the others receive the reason
      let_others_hear(all_ranks());
      throw CommError(call_->error());
    }
    wait_for_next_call();
    return false;
  }
  // The last-will entry precedes the registration, so that the death of an entered rank is always noticed. A second
  // process of this rank leaves none: its goodbye key would be mistaken for that of the first process.
  if (!call_->is_taken()) {
    std::vector<std::string> keys = FormationWatch::keys_of(place_.rank);
    keys.insert(keys.end(), {Registration::kOutcome, bye_of(place_.rank)});
    will_ = call_store_->leave_last_will(keys, call_->will());
  }
  if (!call_->enter()) {
    if (serves) let_others_hear(call_->entered());
    throw CommError(call_->error());
  }
  call_->arrive();
  store_ = std::move(store);
  return true;
}

// Called if the registration had ended before this rank connected. If this rank or its predecessor had entered, rank 0
// will start another one. If the ranks had another world size or backend, the registration may be of another run that
// is ending. If it failed without this rank, this rank throws the same error.
void Meeting::wait_for_next_call() {
  const bool is_ours = call_->is_by_this_process();
  LOCKSTEP_CHECK(place_.rank != 0 || !is_ours,
                 "init_process_group: this process has a group at {} already\n"
                 "Destroy it first, cut it with split, or give another .group_name",
                 place_.address);
  const bool is_of_others = !is_ours && call_->is_of_others();
  if (!is_ours && !is_of_others && !call_->has_failed()) throw CommError(call_->error());
  if (!is_of_others && !call_->has_entered()) {
    call_store_->set(bye_of(place_.rank), "");  // rank 0 waits for the goodbye key
    throw CommError(call_->error());
  }
  const std::size_t place = patience_.where().size() + 2;  // all messages begin with where()
  patience_.retry(is_ours ? "rank 0 still has the group before this one" : call_->error().substr(place), is_of_others);
}

// Rank 0 may destroy its group and the store after this call, so rank 0 waits for the goodbye keys of all ranks. If a
// rank ends meanwhile, the FormationWatch reports it, as other ranks have already returned.
void Meeting::see_off() {
  call_store_->set_timeout(timeout_);
  if (place_.rank != 0) return call_store_->set(bye_of(place_.rank), "");
  for (int rank = 1; rank < place_.size; ++rank) {
    try {
      call_store_->get(bye_of(rank), time_left(end_));
    } catch (const CommTimeout&) {
      throw CommTimeout(fmt::format("{}: rank {} arrived, but did not confirm the outcome", patience_.where(), rank));
    }
  }
}

std::vector<int> Meeting::all_ranks() const {
  std::vector<int> all(static_cast<std::size_t>(place_.size));
  std::iota(all.begin(), all.end(), 0);
  return all;
}

// After a failed registration: keeps the store until these ranks have received the reason and set their goodbye keys.
void Meeting::let_others_hear(const std::vector<int>& ranks) {
  std::vector<std::string> byes;
  try {
    for (const int rank : ranks) {
      if (rank != 0) byes.push_back(bye_of(rank));
    }
    call_store_->wait(byes, kStaleRun);
  } catch (const CommError&) {
    // A rank that hangs is not waited for.
  }
}

}  // namespace

Rendezvous meet(const Place& place, milliseconds timeout) { return Meeting(place, timeout).run(); }

}  // namespace lockstep::parallel
