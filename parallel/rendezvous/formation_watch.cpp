#include "lockstep/parallel/rendezvous/formation_watch_internal.h"

#include <unistd.h>

#include <algorithm>
#include <condition_variable>
#include <utility>

#include "lockstep/base/byte_reader_internal.h"
#include "lockstep/base/check_internal.h"
#include "lockstep/base/process_internal.h"
#include "lockstep/parallel/rendezvous/deadline_internal.h"
#include "lockstep/parallel/rendezvous/store_protocol_internal.h"

namespace lockstep::parallel {

// --- outcomes -------------------------------------------------------------------------------------------------------

void raise_outcome(const std::string& outcome) {
  const std::string text = outcome.substr(1);
  if (outcome[0] == kLate) throw CommTimeout(text);
  throw CommError(text);
}

std::string list_ranks(const std::vector<int>& ranks) {
  constexpr std::size_t kShown = 12;
  std::string out = ranks.size() == 1 ? "rank " : "ranks ";
  for (std::size_t i = 0; i < ranks.size() && i < kShown; ++i) {
    const bool is_last = i + 1 == ranks.size();
    out += fmt::format("{}{}", i == 0 ? "" : is_last ? " and " : ", ", ranks[i]);
  }
  if (ranks.size() > kShown) out += fmt::format(" and {} more", ranks.size() - kShown);
  return out;
}

namespace {

using std::chrono::milliseconds;

constexpr const char *kFailureKey = "failure", *kProbeKey = "probe";
constexpr milliseconds kWaitSlice{100};           // wait for a key between two checks for a failure or of the processes
constexpr milliseconds kBetweenRequests{25};      // least time between two requests
constexpr milliseconds kUntilNoticed{1000};       // for the store to notice the end of a process after a rank has
constexpr milliseconds kUntilAcknowledged{1000};  // for the ranks to receive the reason before the store ends

bool is_timeout(const Error& error) { return dynamic_cast<const CommTimeout*>(&error) != nullptr; }
// Whether the error is of the communication: its text names the ranks, and another rank may be the cause.
bool names_ranks(const Error& error) { return dynamic_cast<const CommError*>(&error) != nullptr; }

std::string reply_key(int rank) { return fmt::format("reply/{}", rank); }
std::string acknowledged_key(int rank) { return fmt::format("acknowledged/{}", rank); }
std::string process_key(int rank) { return fmt::format("process/{}", rank); }
// The keys that the end of a rank sets.
std::vector<std::string> last_will_keys(int rank) {
  return {FormationWatch::kOutcome, kFailureKey, acknowledged_key(rank)};
}

// Sends a waiting request in slices, with a call of `between` after each slice.
template <class Between>
std::string request_in_slices(Store& store, const StoreRequest& request, milliseconds timeout, Between between) {
  Deadline deadline(timeout);
  for (;;) {
    try {
      return store.request(request, std::min(timeout, kWaitSlice));
    } catch (const CommTimeout&) {
      between();
    }
    deadline.waited(2 * kWaitSlice);
    if (deadline.passed())
      throw CommTimeout(fmt::format("init_process_group: no rank has set the key {} in the store within {} ms",
                                    in_quotes(request.keys.at(0)), timeout.count()));
  }
}

class WatchedStore final : public Store {
 public:
  WatchedStore(std::shared_ptr<FormationWatch> watch, std::shared_ptr<Store> store)
      : watch_(std::move(watch)), store_(std::move(store)) {
    set_timeout(store_->timeout());
  }
  std::string request(const StoreRequest& request, milliseconds timeout) override {
    if (!waits_for_keys(request.op) || watch_->is_finished()) return store_->request(request, timeout);
    return request_in_slices(*store_, request, timeout, [this] { watch_->check(); });
  }
  std::unique_ptr<LastWill> leave_last_will(const std::vector<std::string>& keys, const std::string& value) override {
    return store_->leave_last_will(keys, value);
  }

 private:
  std::shared_ptr<FormationWatch> watch_;
  std::shared_ptr<Store> store_;
};

}  // namespace

// --- the watch ------------------------------------------------------------------------------------------------------

FormationWatch::FormationWatch(std::shared_ptr<Store> store, std::string where, int rank, int size,
                               bool waits_for_others)
    : store_(std::move(store)), where_(std::move(where)), rank_(rank), size_(size), waits_for_others_(waits_for_others),
      processes_(static_cast<std::size_t>(size)), checked_(std::chrono::steady_clock::now()) {}

std::string FormationWatch::last_will_of(int rank, const std::string& process) const {
  return fmt::format("{}{}: rank {} (process {}) ended before the group was made", kLost, where_, rank, process);
}

void FormationWatch::begin() {
  last_will_ = store_->leave_last_will(last_will_keys(rank_), last_will_of(rank_, std::to_string(::getpid())));
  if (last_will_) return;
  store_->set(process_key(rank_), process_identity(::getpid()));
  records_processes_ = true;
}

std::string FormationWatch::get(const std::string& key, milliseconds timeout) {
  if (!records_processes_) return store_->get(key, timeout);
  const auto check = [this] {
    const std::lock_guard lock(mutex_);
    check_processes();
  };
  check();
  return request_in_slices(*store_, {.op = StoreOp::kGet, .keys = {key}}, timeout, check);
}

// A rank deletes its key when the group is complete, so the key is read after the end of the process.
void FormationWatch::check_processes() {
  const auto now = std::chrono::steady_clock::now();
  if (now < next_check_) return;
  next_check_ = now + kWaitSlice;
  for (int rank = 0; rank < size_; ++rank) {
    std::string& process = processes_[static_cast<std::size_t>(rank)];
    if (process.empty() && store_->check({process_key(rank)})) process = store_->get(process_key(rank), kAttempt);
    if (!has_ended(process) || !store_->check({process_key(rank)})) continue;
    for (const std::string& key : last_will_keys(rank))
      store_->compare_set(key, "", last_will_of(rank, process.substr(0, process.find(' '))));
  }
}

std::shared_ptr<Store> FormationWatch::watched(std::shared_ptr<FormationWatch> watch, std::shared_ptr<Store> store) {
  return std::make_shared<WatchedStore>(std::move(watch), std::move(store));
}

std::string FormationWatch::failure() {
  const std::lock_guard lock(mutex_);
  const auto now = std::chrono::steady_clock::now();
  if (!failure_.empty() || is_finished() || now - checked_ < kBetweenRequests) return failure_;
  try {
    if (records_processes_) check_processes();
    if (store_->check({kFailureKey})) failure_ = store_->get(kFailureKey);
    if (failure_.empty() && !has_replied_ && store_->check({kProbeKey})) {
      store_->set(reply_key(rank_), "1");
      has_replied_ = true;
    }
  } catch (const CommTimeout& error) {  // the rank that holds the store is stopped
    failure_ = kLate + std::string(error.what());
  }
  checked_ = std::chrono::steady_clock::now();
  return failure_;
}

void FormationWatch::check() {
  if (const std::string first = failure(); !first.empty()) raise_outcome(first);
}

std::string FormationWatch::known_failure() {
  const std::lock_guard lock(mutex_);
  return failure_;
}

// The reason that another rank has recorded, or records before the limit; empty if there is none.
std::string FormationWatch::failure_within(milliseconds limit) {
  try {
    return get(kFailureKey, limit);
  } catch (const CommTimeout&) {
    return "";
  }
}

// Connections to this rank may break before the store notices the end of the process that broke them. A rank that has
// timed out closes its connections, and records the failure when the others have had time to reply.
std::string FormationWatch::find_first(const Error& error) {
  std::string first = known_failure();
  const bool late = is_timeout(error);
  if (first.empty() && names_ranks(error)) first = failure_within(late ? kBetweenRequests : kUntilNoticed);
  if (first.empty() && names_ranks(error) && !late && has_replied_) first = failure_within(2 * kUntilNoticed);
  if (!first.empty()) return first;
  const std::vector<int> silent = late ? silent_ranks() : std::vector<int>();
  if (silent.empty()) return record(error);
  return store_->compare_set(
      kFailureKey, "",
      fmt::format("{}init_process_group: the group cannot be created: {} {} not reply: stopped, or busy?", kLate,
                  list_ranks(silent), silent.size() == 1 ? "does" : "do"));
}

// Called when this rank times out: asks all ranks for a reply and returns those that do not reply. Ranks that wait or
// have timed out themselves do reply.
std::vector<int> FormationWatch::silent_ranks() {
  store_->set(reply_key(rank_), "1");
  store_->set(kProbeKey, "1");
  try {
    store_->wait(keys_of_others(reply_key, all_ranks()), kUntilNoticed);
    return {};
  } catch (const CommTimeout&) {
    return all_but(ranks_with(reply_key, size_));
  }
}

std::vector<int> FormationWatch::all_but(const std::vector<int>& ranks) const {
  std::vector<int> others;
  for (int rank = 0; rank < size_; ++rank) {
    if (std::ranges::find(ranks, rank) == ranks.end()) others.push_back(rank);
  }
  return others;
}

std::vector<int> FormationWatch::ranks_with(std::string (*key)(int rank), int size) const {
  std::vector<int> ranks;
  for (int rank = 0; rank < size; ++rank) {
    if (store_->check({key(rank)})) ranks.push_back(rank);
  }
  return ranks;
}

std::vector<std::string> FormationWatch::keys_of_others(std::string (*key)(int rank),
                                                        const std::vector<int>& ranks) const {
  std::vector<std::string> keys;
  for (const int rank : ranks) {
    if (rank != rank_) keys.push_back(key(rank));
  }
  return keys;
}

std::string FormationWatch::record(const Error& error) {
  return store_->compare_set(kFailureKey, "",
                             fmt::format("{}{}{}", is_timeout(error) ? kLate : kLost,
                                         names_ranks(error) ? "" : fmt::format("rank {}: ", rank_), error.what()));
}

void FormationWatch::acknowledge_failure(const std::vector<int>& ranks) {
  try {
    store_->set(acknowledged_key(rank_), "");
    if (waits_for_others_) store_->wait(keys_of_others(acknowledged_key, ranks), kUntilAcknowledged);
  } catch (const CommError&) {
    // The store has ended, or a rank is busy elsewhere and does not wait for this rank.
  }
}

void FormationWatch::explain(const Error& error) {
  std::string first;
  try {
    first = find_first(error);
    acknowledge_failure(all_ranks());
  } catch (const CommError&) {  // the store's holder has ended, which explains any failure of this rank
    if (first.empty() && names_ranks(error)) throw;
  } catch (const Error&) {
    return;
  }
  const bool is_own = first.find(error.what()) != std::string::npos;
  if (names_ranks(error) && !first.empty() && !is_own) raise_outcome(first);
}

void FormationWatch::pass_on(const Error& error) {
  if (const std::string first = known_failure(); !first.empty() && names_ranks(error)) raise_outcome(first);
  try {
    record(error);
    acknowledge_failure(all_ranks());
  } catch (const Error&) {
    // The store has ended: no rank waits for its keys.
  }
}

void FormationWatch::finish() {
  finished_.store(true, std::memory_order_release);
  if (last_will_) last_will_->cancel();
  last_will_ = nullptr;
  try {
    if (records_processes_) store_->delete_key(process_key(rank_));
  } catch (const Error&) {
    // The other ranks cannot read the key either.
  }
}

std::jthread formation_alarm(FormationWatch* watch, Callback<void()> on_failure) {
  if (!watch) return {};
  return std::jthread([watch, on_failure = std::move(on_failure)](const std::stop_token& stop) {
    std::mutex mutex;
    std::condition_variable_any stopped;
    for (std::unique_lock lock(mutex);;) {
      stopped.wait_for(lock, stop, 2 * kBetweenRequests, [] { return false; });
      if (stop.stop_requested()) return;
      try {
        if (watch->failure().empty()) continue;
      } catch (const Error&) {
        // The store has ended, so the group has failed.
      }
      return on_failure();
    }
  });
}

std::jthread formation_answers(FormationWatch* watch) {
  return formation_alarm(watch, [] {});
}

}  // namespace lockstep::parallel
