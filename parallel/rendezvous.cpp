#include "lockstep/parallel/rendezvous.h"

#include <algorithm>
#include <optional>
#include <thread>

#include "lockstep/parallel/limits_internal.h"
#include "lockstep/parallel/rendezvous_internal.h"
#include "lockstep/parallel/unix_store.h"
#include "lockstep/tensor/byte_reader.h"
#include "lockstep/tensor/check_internal.h"

namespace lockstep::inline LOCKSTEP_ABI::parallel {

namespace {

using Clock = Deadline::Clock;
using std::chrono::milliseconds;

// A last question just before the end gets its answer.
milliseconds time_left(Clock::time_point end) {
  return std::max(std::chrono::ceil<milliseconds>(end - Clock::now()), kSlice);
}

// --- over a store that the caller has -----------------------------------------------------------------------------------

// Groups of one name on one store are numbered: a roll call that is over and has this rank's entry belongs to an earlier
// group. Every rank enters every call once, a failed one too (and hears why it failed), so all agree on the next number.
Rendezvous meet_on_store(const InitOptions& options) {
  LOCKSTEP_CHECK(options.rank >= 0 && options.world_size >= 0,
                 "init_process_group: with .store, .rank and .world_size must be given, too (they are {} and {})",
                 options.rank, options.world_size);
  check_place(options.rank, options.world_size);
  const std::string where = options.group_name.empty() ? "rendezvous" : "rendezvous of " + quoted(options.group_name);
  for (int number = 0;; ++number) {
    const std::string prefix = fmt::format("group/{}/{}/", options.group_name, number);
    PrefixStore calls(prefix + "rendezvous/", options.store);
    RollCall call(calls, options.rank, options.world_size, where);
    if (call.is_over() && call.has_entered()) continue;
    if (!call.enter()) throw CommError(call.error());
    call.arrive();
    call.wait_for_all(options.timeout, options.timeout);
    return {options.rank, options.world_size, std::make_shared<PrefixStore>(prefix, options.store)};
  }
}

// --- over a store that rank 0 serves ------------------------------------------------------------------------------------

std::string describe(const Greeting& greeting, const std::string& where, int size) {
  const pid_t pid = greeting.server.pid;
  switch (greeting.welcome) {
    case Welcome::kOtherUser:
      return fmt::format("{}: the address belongs to process {} of user {}\nChoose another MASTER_PORT", where, pid,
                         greeting.server.uid);
    case Welcome::kOtherVersion:
      return fmt::format("{}: process {} there runs another version of Lockstep (store protocol {}, here {})", where,
                         pid, greeting.detail, StoreHello::kVersion);
    case Welcome::kOtherJob:
      return fmt::format(
          "{}: another job uses this address: process {}\nWait for its end, end it if it is a stale run, "
          "or choose another MASTER_PORT",
          where, pid);
    case Welcome::kOtherSize:
      return fmt::format("{}: rank 0 (process {}) counts {} ranks, this process {}\nWORLD_SIZE must be the same on all",
                         where, pid, greeting.detail, size);
    case Welcome::kSilent:
      return fmt::format("{}: rank 0 (process {}) does not answer: is it stopped?", where, pid);
    default:
      return fmt::format("{}: rank 0 did not arrive", where);
  }
}

// How long to go on trying. What belongs to another run may be about to end; it gets a moment.
class Patience {
 public:
  Patience(const Place& place, milliseconds timeout)
      : where_("rendezvous at " + place.address), size_(place.size), timeout_(timeout), deadline_(timeout) {}

  // Waits a moment, or throws.
  void retry(const Greeting& greeting) {
    const bool is_foreign = greeting.welcome >= Welcome::kOtherUser;
    if (!is_foreign) foreign_since_.reset();
    if (is_foreign && !foreign_since_) foreign_since_ = Clock::now();
    static_cast<void>(deadline_.slice());  // moves the deadline where this process was stopped
    const std::string text = describe(greeting, where_, size_);
    if (is_foreign && (deadline_.passed() || Clock::now() - *foreign_since_ > kStaleRun)) throw CommError(text);
    retry(text);
  }
  void retry(const std::string& text) {
    last_ = text;
    if (deadline_.passed()) throw CommTimeout(fmt::format("{} (after {} ms)", text, timeout_.count()));
    std::this_thread::sleep_for(kConnectPoll);
  }

  // For the same reason as the last time.
  void retry() { retry(last_.empty() ? where_ + ": rank 0 did not arrive" : std::string(last_)); }

  const std::string& where() const { return where_; }

 private:
  std::string where_, last_;
  int size_;
  milliseconds timeout_;
  Deadline deadline_;
  std::optional<Clock::time_point> foreign_since_;
};

// One meeting at the address of `place`.
class Meeting {
 public:
  Meeting(const Place& place, milliseconds timeout)
      : place_(place), timeout_(timeout), end_(Clock::now() + timeout),
        patience_(place, timeout), options_{.socket = place.socket,
                                            .address = place.address,
                                            .job = place.job,
                                            .rank = place.rank,
                                            .size = place.size} {}

  std::shared_ptr<Store> run() {
    while (!(place_.rank == 0 ? host() : join())) {
    }
    try {
      call_->wait_for_all(time_left(end_), timeout_);
    } catch (const CommError&) {
      if (place_.rank == 0) let_others_hear();
      throw;
    }
    see_off();
    return store_;
  }

 private:
  // Both return whether this rank has arrived; if not, another try follows, after a pause or at once.
  bool host();
  bool join();
  bool enter(std::shared_ptr<UnixStore> store);
  void wait_for_next_call();
  void meet_other_host();
  void see_off();
  void let_others_hear();

  Place place_;
  milliseconds timeout_;
  Clock::time_point end_;
  Patience patience_;
  UnixStoreOptions options_;
  std::shared_ptr<UnixStore> store_;
  std::shared_ptr<PrefixStore> call_store_;
  std::optional<RollCall> call_;
  Descriptor will_;
};

constexpr const char* kCallPrefix = "rendezvous/";
std::string bye_of(int rank) { return "bye/" + std::to_string(rank); }

bool Meeting::host() {
  Descriptor listener = listen_abstract(options_.socket);
  if (!listener) {
    if (errno != EADDRINUSE) throw CommError(fmt::format("{}: {}", patience_.where(), reason(errno)));
    meet_other_host();
    return false;
  }
  auto server = std::make_unique<UnixStoreServer>(std::move(listener), place_.job, place_.size);
  Greeting greeting = greet(options_, Deadline(kHandshakeDeadline));
  if (greeting.welcome != Welcome::kYes) throw CommError(describe(greeting, patience_.where(), place_.size));
  return enter(std::make_shared<UnixStore>(options_, std::move(greeting), std::move(server)));
}

// Rank 0's address is taken: by a run that ends just now, or for good.
void Meeting::meet_other_host() {
  Greeting greeting = greet(options_, Deadline(std::min<milliseconds>(time_left(end_), kHandshakeDeadline)));
  if (greeting.welcome != Welcome::kYes) return patience_.retry(greeting);
  auto store = std::make_shared<UnixStore>(options_, std::move(greeting));
  try {
    store->get(kCallPrefix + RollCall::key_of(0), std::min<milliseconds>(time_left(end_), kStaleRun));
  } catch (const CommError&) {  // it does not get as far as that, or ended meanwhile
    return patience_.retry(fmt::format("{}: another rank 0 has the address", patience_.where()));
  }
  enter(std::move(store));  // which says who is there already
}

bool Meeting::join() {
  Greeting greeting = greet(options_, Deadline(std::min<milliseconds>(time_left(end_), kHandshakeDeadline)));
  if (greeting.welcome == Welcome::kYes) return enter(std::make_shared<UnixStore>(options_, std::move(greeting)));
  patience_.retry(greeting);
  return false;
}

bool Meeting::enter(std::shared_ptr<UnixStore> store) {
  store->set_timeout(time_left(end_));
  call_store_ = std::make_shared<PrefixStore>(kCallPrefix, store);
  call_.emplace(*call_store_, place_.rank, place_.size, patience_.where());
  bool is_over = false;
  try {
    is_over = call_->is_over();
  } catch (const CommError&) {  // its server ended under our hands: that of an earlier group
    patience_.retry();
    return false;
  }
  if (is_over) {
    wait_for_next_call();
    return false;
  }
  // First the will, so that there is no moment in which the death of a rank that has entered goes unnoticed.
  will_ = store->leave_will({std::string(kCallPrefix) + RollCall::kOutcome, kCallPrefix + bye_of(place_.rank)},
                            call_->will());
  if (!call_->enter()) throw CommError(call_->error());
  call_->arrive();
  store_ = std::move(store);
  return true;
}

// The call was over before this rank came. If it failed, or was that of our own earlier group, rank 0 will end it and
// begin another.
void Meeting::wait_for_next_call() {
  const bool is_ours = call_->is_by_this_process();
  LOCKSTEP_CHECK(place_.rank != 0 || !is_ours,
                 "init_process_group: this process has a group at {} already\n"
                 "Destroy it first, cut it with split, or give another .group_name",
                 place_.address);
  if (!is_ours && !call_->has_failed()) throw CommError(call_->error());
  patience_.retry(is_ours ? fmt::format("{}: rank 0 still has the group before this one", patience_.where())
                          : call_->error());
}

// Rank 0 may end its group, and the store, as soon as this returns. So it waits until all have heard the outcome.
void Meeting::see_off() {
  store_->set_timeout(timeout_);
  if (place_.rank != 0) return call_store_->set(bye_of(place_.rank), "");
  std::vector<std::string> byes;
  for (int rank = 1; rank < place_.size; ++rank) byes.push_back(bye_of(rank));
  try {
    call_store_->wait(byes, time_left(end_));
  } catch (const CommTimeout&) {
    throw CommTimeout(fmt::format("{}: a rank arrived and was not heard of again", patience_.where()));
  }
  for (const std::string& bye : byes) {
    const std::string text = call_store_->get(bye);
    if (!text.empty()) throw CommError(text.substr(1));
  }
}

// After a failed call: those who have entered hear the reason before the store goes. Their wills say when they have.
void Meeting::let_others_hear() {
  std::vector<std::string> byes;
  try {
    for (const int rank : call_->entered()) {
      if (rank != 0) byes.push_back(bye_of(rank));
    }
    call_store_->wait(byes, kStaleRun / 2);
  } catch (const CommError&) {
    // One that hangs is not waited for.
  }
}

}  // namespace

Rendezvous rendezvous(const InitOptions& options) {
  LOCKSTEP_CHECK(options.timeout.count() > 0, "init_process_group: the timeout is {} ms, expected more than 0",
                 options.timeout.count());
  Rendezvous result;
  if (options.store) {
    result = meet_on_store(options);
  } else {
    const bool by_mpi = options.init_method == "mpi://";
    if (!by_mpi && options.init_method != "env://")
      throw NotBuilt(fmt::format(
          "init_process_group: init_method {} is not in this version\nUse env:// or mpi://, or give .store, "
          ".rank and .world_size",
          quoted(options.init_method)));
    const Place place = by_mpi ? place_from_mpi(options) : place_from_environment(options);
    if (by_mpi && options.backend == "mpi") return {place.rank, place.size};
    result = {place.rank, place.size, nullptr};
    if (place.size == 1) {
      result.store = std::make_shared<InProcessStore>();
    } else {
      result.store = Meeting(place, options.timeout).run();
    }
  }
  result.store->set_timeout(options.timeout);
  return result;
}

}  // namespace lockstep::inline LOCKSTEP_ABI::parallel
