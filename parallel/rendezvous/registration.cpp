// The registration of the ranks of one group in a store, over a store that all ranks have, and at an endpoint.
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "lockstep/base/byte_reader_internal.h"
#include "lockstep/base/check_internal.h"
#include "lockstep/parallel/rendezvous/endpoint_internal.h"
#include "lockstep/parallel/rendezvous/formation_watch_internal.h"
#include "lockstep/parallel/rendezvous/limits_internal.h"
#include "lockstep/parallel/rendezvous/membership_internal.h"

namespace lockstep::parallel {

using std::chrono::milliseconds;

// --- the registration -----------------------------------------------------------------------------------------------

namespace {

constexpr const char* kAllHere = "all here";

bool has_failed(const std::string& outcome) { return outcome != kAllHere; }
std::string rank_key(int rank) { return fmt::format("rank/{}", rank); }
std::string waits_key(int rank) { return fmt::format("waits/{}", rank); }
std::string confirmed_key(int rank) { return fmt::format("confirmed/{}", rank); }
std::string process_mark() { return fmt::format("process {}", ::getpid()); }

// Every rank enters itself in the store, and all ranks receive one outcome: all have arrived, or an error.
class Registration {
 public:
  // `store` is for this registration alone; `where` begins the messages. `waits_for_others`: see FormationWatch.
  Registration(const RendezvousOptions& options, const Membership& own, std::string where, std::shared_ptr<Store> store,
               bool waits_for_others);

  // The state before this rank enters.
  enum class State {
    kOpen,        // this rank can enter
    kOwn,         // ended; this process had entered
    kFailed,      // ended with an error; another process of this rank had entered
    kMissed,      // ended with an error before this rank entered
    kOtherTerms,  // ended; the ranks had another world size or backend
    kTwice,       // ended; another process is this rank
  };
  State state();
  const std::string& error() const { return error_; }  // of a registration that has ended, except kOwn

  // Enters this rank. Throws CommError if another process has entered as this rank, or another rank has a different
  // world size or backend. The error names both, and the ranks that wait receive the same error.
  void enter();
  // Returns when all ranks have arrived. Throws CommTimeout naming the missing ranks, or the CommError that ended the
  // registration. Part of the time limit in the message may have passed before the call.
  void wait_for_all(milliseconds timeout);

  const std::shared_ptr<FormationWatch>& watch() const { return watch_; }

 private:
  std::string compare_terms(bool enters);
  std::string value_of(const std::string& key) { return store_->check({key}) ? store_->get(key) : ""; }
  std::string record_timeout();
  std::string describe_missing();
  std::string describe_twice(const std::string& holder) const;

  const RendezvousOptions& options_;
  int rank_, size_, most_ranks_;  // most_ranks_: the largest world size among the ranks
  std::string where_, mark_, error_;
  std::shared_ptr<Store> store_;
  std::shared_ptr<FormationWatch> watch_;
};

// Ranks can be threads of one process, so the mark includes the thread.
Registration::Registration(const RendezvousOptions& options, const Membership& own, std::string where,
                           std::shared_ptr<Store> store, bool waits_for_others)
    : options_(options), rank_(own.rank), size_(own.size), most_ranks_(own.size), where_(std::move(where)),
      mark_(process_mark()), store_(std::move(store)),
      watch_(std::make_shared<FormationWatch>(store_, where_, rank_, size_, waits_for_others)) {
  const long thread = ::syscall(SYS_gettid);
  if (thread != ::getpid()) mark_ += fmt::format(" (thread {})", thread);
}

Registration::State Registration::state() {
  const std::string outcome = value_of(FormationWatch::kOutcome);
  if (outcome.empty()) return State::kOpen;
  const std::string holder = value_of(rank_key(rank_));
  if (holder == process_mark() || holder.starts_with(process_mark() + " ")) return State::kOwn;
  if (has_failed(outcome)) {
    error_ = outcome.substr(1);
    return holder.empty() ? State::kMissed : State::kFailed;
  }
  error_ = compare_terms(/*enters=*/false);
  if (!error_.empty()) return State::kOtherTerms;
  error_ = describe_twice(holder);
  return State::kTwice;
}

// The last-will entry precedes the registration, so that the death of an entered rank is always noticed. A second
// process of this rank leaves none: its keys would be mistaken for those of the first process. A rank that disagrees
// enters as well, as all ranks of a store must count the same rendezvous.
void Registration::enter() {
  if (!store_->check({rank_key(rank_)})) watch_->begin();
  error_ = compare_terms(/*enters=*/true);
  const std::string holder = store_->compare_set(rank_key(rank_), "", mark_);
  const bool agrees = error_.empty();
  if (agrees && holder == mark_) {
    if (store_->add("arrived", 1) == size_) store_->compare_set(FormationWatch::kOutcome, "", kAllHere);
    store_->set(waits_key(rank_), "");
    return;
  }
  if (agrees) error_ = describe_twice(holder);
  store_->compare_set(FormationWatch::kOutcome, "", kLost + error_);
  if (!agrees) watch_->acknowledge_failure(watch_->ranks_with(rank_key, most_ranks_));
  throw CommError(error_);
}

// The error if this rank has another world size or backend than the first rank that entered; empty if it has the same.
// With `enters`, this rank may be the first.
std::string Registration::compare_terms(bool enters) {
  const struct {
    const char *key, *name, *options;
    std::string own;
  } terms[] = {{"size", "number of ranks", "WORLD_SIZE or .world_size", std::to_string(size_)},
               {"backend", "backend", ".backend", in_quotes(options_.backend)}};
  for (const auto& term : terms) {
    const std::string entry = fmt::format("{}\nrank {} ({})", term.own, rank_, mark_);
    const std::string first = enters ? store_->compare_set(term.key, "", entry) : value_of(term.key);
    const std::size_t end = first.find('\n');
    if (end == std::string::npos)
      throw CommError(fmt::format("{}: the store has {} as the ranks' {}: does another program use this store?", where_,
                                  in_quotes(first), term.name));
    const std::string theirs = first.substr(0, end);
    if (theirs == term.own) continue;
    most_ranks_ = std::clamp(whole_number<int>(theirs).value_or(0), size_, kMaxRanks);
    return fmt::format("{}: ranks disagree about the {}: {} has {}, rank {} ({}) has {}\nGive all ranks the same {}",
                       where_, term.name, first.substr(end + 1), theirs, rank_, mark_, term.own, term.options);
  }
  return "";
}

std::string Registration::describe_twice(const std::string& holder) const {
  return fmt::format("{}: rank {} was started twice: as {}, and as {}\nEvery rank of a job is started once", where_,
                     rank_, holder, mark_);
}

// The store, with the list of entered ranks, ends with rank 0. So rank 0 times out first, and reports the missing
// ranks.
void Registration::wait_for_all(milliseconds timeout) {
  constexpr milliseconds kForRankZero{500};
  std::string outcome;
  try {
    outcome = watch_->get(FormationWatch::kOutcome, rank_ == 0 ? timeout : timeout + kForRankZero);
  } catch (const CommTimeout&) {
    outcome = record_timeout();
  }
  if (!has_failed(outcome)) return;
  try {
    if (watch_->waits_for_others())
      watch_->acknowledge_failure(outcome[0] == kLate ? watch_->ranks_with(rank_key, most_ranks_)
                                                      : watch_->all_ranks());
  } catch (const CommError&) {
    // The store does not reply, so no rank can receive the reason.
  }
  raise_outcome(outcome);
}

// Records the timeout as the outcome, unless an outcome was set meanwhile.
std::string Registration::record_timeout() {
  try {
    return store_->compare_set(FormationWatch::kOutcome, "", kLate + describe_missing());
  } catch (const CommError& error) {
    return kLate + fmt::format("{}: not all of {} ranks arrived within {} ms, and the store does not reply:\n{}",
                               where_, size_, options_.timeout.count(), error.what());
  }
}

std::string Registration::describe_missing() {
  const std::vector<int> here = watch_->ranks_with(rank_key, most_ranks_), missing = watch_->all_but(here);
  if (!missing.empty())
    return fmt::format("{}: {} of {} did not arrive within {} ms; {} {} here", where_, list_ranks(missing), size_,
                       options_.timeout.count(), list_ranks(here), here.size() == 1 ? "is" : "are");
  const std::vector<int> hanging = watch_->all_but(watch_->ranks_with(waits_key, size_));
  return fmt::format("{}: all ranks have entered, but {} {} in it", where_, list_ranks(hanging),
                     hanging.size() == 1 ? "hangs" : "hang");
}

}  // namespace

// --- over a store that all ranks have -------------------------------------------------------------------------------

// Groups of one name on one store are numbered: a registration that has ended and has this rank's entry, or
// other terms, belongs to an earlier group. Every rank enters every registration once, a failed one as well
// (and receives its error), so all ranks agree on the next number.
Rendezvous join_over_store(const RendezvousOptions& options, const Membership& own,
                           const std::shared_ptr<Store>& store) {
  const std::string where =
      options.group_name.empty() ? "rendezvous" : "rendezvous of " + in_quotes(options.group_name);
  for (int number = 0;; ++number) {
    const std::string prefix = fmt::format("group/{}/{}/", options.group_name, number);
    Registration registration(options, own, where, std::make_shared<PrefixStore>(prefix + "rendezvous/", store),
                              /*waits_for_others=*/true);
    const Registration::State state = registration.state();
    if (state != Registration::State::kOpen && state != Registration::State::kMissed) continue;
    registration.enter();
    registration.wait_for_all(options.timeout);
    return {.rank = own.rank,
            .size = own.size,
            .store = std::make_shared<PrefixStore>(prefix, store),
            .watch = registration.watch()};
  }
}

// --- at an endpoint -------------------------------------------------------------------------------------------------

namespace {

constexpr const char* kCallPrefix = "rendezvous/";
constexpr milliseconds kFinalRequest{300};  // limit of the final request: enough for a slow network

// The registration in the store that rank 0 serves at the endpoint. An attempt gets the store and enters; run() then
// waits for the outcome.
class EndpointRendezvous {
 public:
  EndpointRendezvous(const RendezvousOptions& options, const Membership& own)
      : options_(options), own_(own), where_("rendezvous at " + own.address), endpoint_(make_endpoint(own)),
        budget_(where_, options.timeout, own.is_one_host) {}

  Rendezvous run();

 private:
  Attempt connect();
  Attempt join();
  Attempt join_other_host(const std::string& taken);
  bool enter(Attempt& attempt);
  void confirm_outcome();

  const RendezvousOptions& options_;
  const Membership& own_;
  std::string where_;
  std::unique_ptr<Endpoint> endpoint_;
  RetryBudget budget_;
  std::shared_ptr<Store> calls_;  // the store with kCallPrefix
  std::optional<Registration> registration_;
};

Rendezvous EndpointRendezvous::run() {
  const std::shared_ptr<Store> store = budget_.retry([this] {
    Attempt attempt = connect();
    if (attempt.store && !enter(attempt)) attempt.store = nullptr;
    return attempt;
  });
  // After the timeout, requests are short: a disconnected host receives no reply.
  if (own_.rank != 0) calls_->set_timeout(kFinalRequest);
  registration_->wait_for_all(budget_.time_left());
  store->set_timeout(options_.timeout);
  try {
    confirm_outcome();
  } catch (const CommError& error) {
    registration_->watch()->pass_on(error);
    throw;
  }
  return {.rank = own_.rank,
          .size = own_.size,
          .store = store,
          .address = endpoint_->own_address(),
          .watch = registration_->watch()};
}

Attempt EndpointRendezvous::connect() {
  try {
    if (own_.rank != 0) return join();
    Attempt attempt = endpoint_->host();
    return attempt.store ? attempt : join_other_host(attempt.failure);
  } catch (const UnknownHost&) {
    throw;
  } catch (CommError& error) {
    error.add_context(where_);
    throw;
  }
}

// Over TCP another job at the address does not end the attempts before the timeout.
Attempt EndpointRendezvous::join() {
  Attempt attempt = endpoint_->join(Deadline(std::min<milliseconds>(budget_.time_left(), kHandshakeDeadline)));
  attempt.is_foreign = attempt.is_foreign && own_.is_one_host;
  return attempt;
}

// Called if rank 0's address is taken, either for good or by a run that is ending. If another process has entered
// there as rank 0, entering its registration throws an error that names the process.
Attempt EndpointRendezvous::join_other_host(const std::string& taken) {
  Attempt other = join();
  if (!other.store) return {.failure = taken.empty() ? other.failure : taken, .is_foreign = true};
  try {
    other.store->get(kCallPrefix + rank_key(0), std::min<milliseconds>(budget_.time_left(), kStaleRun));
    return other;
  } catch (const CommError&) {  // the other rank 0 did not enter, or has ended
    return {.failure = taken.empty() ? "another rank 0 has the address" : taken};
  }
}

// Returns whether this rank has entered; if not, `attempt` has the reason.
bool EndpointRendezvous::enter(Attempt& attempt) {
  using State = Registration::State;
  attempt.store->set_timeout(budget_.time_left());
  calls_ = std::make_shared<PrefixStore>(kCallPrefix, attempt.store);
  registration_.emplace(options_, own_, where_, calls_, /*waits_for_others=*/attempt.is_host);
  State state{};
  try {
    state = registration_->state();
  } catch (const CommError&) {  // the server of an earlier group ended meanwhile
    return false;
  }
  if (state == State::kOpen) {
    registration_->enter();
    return true;
  }
  LOCKSTEP_CHECK(own_.rank != 0 || state != State::kOwn,
                 "init_process_group: this process has a group at {} already\n"
                 "Destroy it first, cut it with split, or give another .group_name",
                 own_.address);
  // A rank died before this one entered: the ranks receive the reason before the store ends.
  FormationWatch& watch = *registration_->watch();
  if (attempt.is_host) watch.acknowledge_failure(watch.all_ranks());
  if (!attempt.is_host && state == State::kMissed) watch.acknowledge_failure({});  // rank 0 waits for it
  if (attempt.is_host || state == State::kMissed || state == State::kTwice) throw CommError(registration_->error());
  // The registration of an earlier group, or of another run that is ending: rank 0 will start another one.
  attempt.is_foreign = state == State::kOtherTerms;
  attempt.failure = state == State::kOwn
                        ? "rank 0 still has the group before this one"
                        : registration_->error().substr(where_.size() + 2);  // all messages begin with where_
  return false;
}

// Rank 0 may destroy its group and the store after this call, so rank 0 waits until all ranks have the outcome.
void EndpointRendezvous::confirm_outcome() {
  calls_->set_timeout(options_.timeout);
  if (own_.rank != 0) return calls_->set(confirmed_key(own_.rank), "");
  const std::shared_ptr<FormationWatch> watch = registration_->watch();
  const std::shared_ptr<Store> store = FormationWatch::watched(watch, calls_);
  for (int rank = 1; rank < own_.size; ++rank) {
    try {
      store->get(confirmed_key(rank), budget_.time_left());
    } catch (const CommTimeout&) {
      watch->check();
      throw CommTimeout(fmt::format("{}: rank {} arrived, but did not confirm the outcome", where_, rank));
    }
  }
}

}  // namespace

Rendezvous join_at_endpoint(const RendezvousOptions& options, const Membership& own) {
  return EndpointRendezvous(options, own).run();
}

}  // namespace lockstep::parallel
