// The registration, and the rendezvous over a store that all ranks have.
#include "lockstep/parallel/rendezvous/rendezvous.h"

#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <thread>

#include "lockstep/base/byte_reader_internal.h"
#include "lockstep/base/check_internal.h"
#include "lockstep/base/process_internal.h"
#include "lockstep/parallel/rendezvous/formation_watch_internal.h"
#include "lockstep/parallel/rendezvous/limits_internal.h"
#include "lockstep/parallel/rendezvous/place_internal.h"
#include "lockstep/parallel/rendezvous/socket_internal.h"
#include "lockstep/parallel/rendezvous/store.h"

namespace lockstep::parallel {

// --- the registration -----------------------------------------------------------------------------------------------

namespace {

std::string process_mark() { return fmt::format("process {}", ::getpid()); }

}  // namespace

// Ranks can be threads of one process, so the mark includes the thread.
Registration::Registration(Store& store, FormationWatch& watch, int rank, int size, std::string backend,
                           std::string where)
    : store_(store), watch_(watch), rank_(rank), size_(size), most_ranks_(size), backend_(std::move(backend)),
      where_(std::move(where)), mark_(process_mark()) {
  const long thread = ::syscall(SYS_gettid);
  if (thread != ::getpid()) mark_ += fmt::format(" (thread {})", thread);
}

// The value of the key; empty if the key does not exist.
std::string Registration::value_of(const std::string& key) { return store_.check({key}) ? store_.get(key) : ""; }

bool Registration::is_over() {
  outcome_ = value_of(FormationWatch::kOutcome);
  if (outcome_.empty()) return false;
  holder_ = value_of(key_of(rank_));
  error_ = has_failed() ? outcome_.substr(1) : compare_terms(/*enters=*/false);
  is_of_others_ = !has_failed() && !error_.empty();
  if (error_.empty()) error_ = describe_twice();
  return true;
}

// The last-will entry precedes the registration, so that the death of an entered rank is always noticed. A second
// process of this rank leaves none: its keys would be mistaken for those of the first process. A rank that disagrees
// enters as well, as all ranks of a store must count the same rendezvous.
void Registration::enter() {
  if (!store_.check({key_of(rank_)})) watch_.begin();
  error_ = compare_terms(/*enters=*/true);
  holder_ = store_.compare_set(key_of(rank_), "", mark_);
  const bool agrees = error_.empty();
  if (agrees && holder_ == mark_) {
    if (store_.add("arrived", 1) == size_) store_.compare_set(FormationWatch::kOutcome, "", kAllHere);
    store_.set(waits_key_of(rank_), "");
    return;
  }
  if (agrees) error_ = describe_twice();
  store_.compare_set(FormationWatch::kOutcome, "", kLost + error_);
  if (!agrees) watch_.confirm_failure(entered());
  throw CommError(error_);
}

// The error if this rank has another world size or backend than the first rank that entered; empty if it has the same.
// With `enters`, this rank may be the first.
std::string Registration::compare_terms(bool enters) {
  const struct {
    const char *key, *name, *options;
    std::string own;
  } terms[] = {{"size", "number of ranks", "WORLD_SIZE or .world_size", std::to_string(size_)},
               {"backend", "backend", ".backend", in_quotes(backend_)}};
  for (const auto& term : terms) {
    const std::string entry = fmt::format("{}\nrank {} ({})", term.own, rank_, mark_);
    const std::string first = enters ? store_.compare_set(term.key, "", entry) : value_of(term.key);
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

std::string Registration::describe_twice() const {
  return fmt::format("{}: rank {} was started twice: as {}, and as {}\nEvery rank of a job is started once", where_,
                     rank_, holder_, mark_);
}

bool Registration::is_by_this_process() const {
  return holder_ == process_mark() || holder_.starts_with(process_mark() + " ");
}

// The store, with the list of entered ranks, ends with rank 0. So rank 0 times out first, and reports the missing
// ranks.
void Registration::wait_for_all(std::chrono::milliseconds timeout, std::chrono::milliseconds shown) {
  constexpr std::chrono::milliseconds kForRankZero{500};
  try {
    outcome_ = watch_.get(FormationWatch::kOutcome, rank_ == 0 ? timeout : timeout + kForRankZero);
  } catch (const CommTimeout&) {
    outcome_ = settle_late(shown);
  }
  if (!has_failed()) return;
  try {
    if (watch_.waits_for_others()) watch_.confirm_failure(outcome_[0] == kLate ? entered() : watch_.all_ranks());
  } catch (const CommError&) {
    // The store does not reply, so no rank can receive the reason.
  }
  raise_outcome(outcome_);
}

// Records the timeout as the outcome, unless an outcome was set meanwhile.
std::string Registration::settle_late(std::chrono::milliseconds shown) {
  try {
    return store_.compare_set(FormationWatch::kOutcome, "", kLate + describe_missing(shown));
  } catch (const CommError& error) {
    return kLate + fmt::format("{}: not all of {} ranks arrived within {} ms, and the store does not reply:\n{}",
                               where_, size_, shown.count(), error.what());
  }
}

std::vector<int> Registration::entered() {
  std::vector<int> here;
  for (int rank = 0; rank < most_ranks_; ++rank) {
    if (store_.check({key_of(rank)})) here.push_back(rank);
  }
  return here;
}

std::string Registration::describe_missing(std::chrono::milliseconds shown) {
  const std::vector<int> here = entered();
  std::vector<int> missing;
  for (int rank = 0; rank < size_; ++rank) {
    if (std::find(here.begin(), here.end(), rank) == here.end()) missing.push_back(rank);
  }
  if (missing.empty()) {
    for (const int rank : here) {
      if (!store_.check({waits_key_of(rank)})) missing.push_back(rank);
    }
    return fmt::format("{}: all ranks have entered, but {} {} in it", where_, list_ranks(missing),
                       missing.size() == 1 ? "hangs" : "hang");
  }
  return fmt::format("{}: {} of {} did not arrive within {} ms; {} {} here", where_, list_ranks(missing), size_,
                     shown.count(), list_ranks(here), here.size() == 1 ? "is" : "are");
}

// --- the rendezvous -------------------------------------------------------------------------------------------------

namespace {

// Groups of one name on one store are numbered: a registration that has ended and has this rank's entry, or
// other terms, belongs to an earlier group. Every rank enters every registration once, a failed one as well
// (and receives its error), so all ranks agree on the next number.
Rendezvous meet_on_store(const RendezvousOptions& options, const Place& place, const std::shared_ptr<Store>& store) {
  const std::string where =
      options.group_name.empty() ? "rendezvous" : "rendezvous of " + in_quotes(options.group_name);
  for (int number = 0;; ++number) {
    const std::string prefix = fmt::format("group/{}/{}/", options.group_name, number);
    const auto calls = std::make_shared<PrefixStore>(prefix + "rendezvous/", store);
    const auto watch =
        std::make_shared<FormationWatch>(calls, where, place.rank, place.size, /*waits_for_others=*/true);
    Registration registration(*calls, *watch, place.rank, place.size, options.backend, where);
    if (registration.is_over() && (registration.has_entered() || registration.is_of_others())) continue;
    registration.enter();
    registration.wait_for_all(options.timeout, options.timeout);
    return {
        .rank = place.rank, .size = place.size, .store = std::make_shared<PrefixStore>(prefix, store), .watch = watch};
  }
}

// --- checks over the store ------------------------------------------------------------------------------------------

// Identifies the kernel and the network of this process, as containers of one host may have several networks. Throws
// without a file descriptor, as the host would otherwise look like another one.
std::string host_id() {
  const std::string id = namespace_id("net");
  if (id.empty() && is_out_of_descriptors(errno))
    throw CommError(fmt::format("init_process_group: cannot tell which host this is: {}", reason(errno)));
  return id;
}

// The first rank on another host than rank 0; 0 if all ranks are on one host.
int first_elsewhere(const Rendezvous& here) {
  const auto key = [](int rank) { return fmt::format("host/{}", rank); };
  const std::shared_ptr<Store> store = FormationWatch::watched(here.watch, here.store);
  const std::jthread answers = formation_answers(here.watch.get());
  try {
    store->set(key(here.rank), host_id());
    const std::string first = store->get(key(0));
    for (int rank = 1; rank < here.size; ++rank) {
      if (store->get(key(rank)) != first) return rank;
    }
    return 0;
  } catch (const CommError& error) {
    here.watch->explain(error);
    throw;
  }
}

// For a backend that needs one host: the ranks of a TCP store may be on several.
void check_same_host(const Rendezvous& here, const std::string& backend) {
  const int rank = first_elsewhere(here);
  if (rank > 0)
    throw CommError(
        fmt::format("init_process_group: backend {} joins processes of one host, and ranks 0 and {} are on "
                    "different ones\nUse .backend = \"gloo\" or \"mpi\" there",
                    backend, rank));
}

}  // namespace

Rendezvous rendezvous(const RendezvousOptions& options) {
  LOCKSTEP_CHECK(options.timeout.count() > 0, "init_process_group: the timeout is {} ms, expected more than 0",
                 options.timeout.count());
  const Place place = find_place(options);
  if (place.scheme == options.backend) return {.rank = place.rank, .size = place.size};
  std::shared_ptr<Store> store = options.store;
  if (!store && place.scheme == "file")
    store =
        std::make_shared<FileStore>(place.path, FileStoreOptions{.world_size = place.size, .timeout = options.timeout});
  if (!store && place.size == 1) return {.rank = 0, .size = 1, .store = std::make_shared<InProcessStore>()};
  Rendezvous result = store ? meet_on_store(options, place, store) : meet_at_endpoint(options, place);
  result.store->set_timeout(options.timeout);
  const BackendNeeds needs = options.needs ? options.needs(options.backend) : BackendNeeds();
  if (!store && !place.is_one_host && needs.one_host) check_same_host(result, options.backend);
  if (store && needs.network_address)  // a store does not tell the ranks' hosts
    result.address = first_elsewhere(result) > 0 ? address_on_network() : "127.0.0.1";
  return result;
}

}  // namespace lockstep::parallel
