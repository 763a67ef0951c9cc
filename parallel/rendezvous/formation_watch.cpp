#include "lockstep/parallel/rendezvous/formation_watch_internal.h"

#include <utility>

#include "lockstep/parallel/rendezvous/deadline_internal.h"
#include "lockstep/parallel/rendezvous/place_internal.h"
#include "lockstep/parallel/rendezvous/store_protocol_internal.h"
#include "lockstep/tensor/byte_reader_internal.h"
#include "lockstep/tensor/check_internal.h"

namespace lockstep::parallel {
namespace {

using std::chrono::milliseconds;

constexpr const char *kFailureKey = "failure", *kQuestionKey = "question";
constexpr milliseconds kWaitSlice{100};        // wait for a key between two checks for a failure
constexpr milliseconds kBetweenQuestions{25};  // least time between two requests
constexpr milliseconds kUntilNoticed{1000};    // for the store to notice the end of a process after a rank has
constexpr milliseconds kUntilHeard{1000};      // for the ranks to receive the reason before the store ends

std::string here_key(int rank) { return fmt::format("here/{}", rank); }
std::string heard_key(int rank) { return fmt::format("heard/{}", rank); }

class WatchedStore final : public Store {
 public:
  WatchedStore(std::shared_ptr<FormationWatch> watch, std::shared_ptr<Store> store)
      : watch_(std::move(watch)), store_(std::move(store)) {
    set_timeout(store_->timeout());
  }
  // Sends a waiting request in slices, and checks the watch between the slices.
  std::string request(const StoreRequest& request, milliseconds timeout) override {
    if (!waits_for_keys(request.op) || watch_->is_finished()) return store_->request(request, timeout);
    Deadline deadline(timeout);
    for (;;) {
      try {
        return store_->request(request, std::min(timeout, kWaitSlice));
      } catch (const CommTimeout&) {
        watch_->check();
      }
      deadline.waited(2 * kWaitSlice);
      if (deadline.passed())
        throw CommTimeout(fmt::format("init_process_group: no rank has set the key {} in the store within {} ms",
                                      in_quotes(request.keys.at(0)), timeout.count()));
    }
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

std::vector<std::string> FormationWatch::keys_of(int rank) { return {kFailureKey, heard_key(rank)}; }

FormationWatch::FormationWatch(std::shared_ptr<Store> store, std::unique_ptr<LastWill> will, int rank, int size,
                               bool waits_for_others)
    : store_(std::move(store)), will_(std::move(will)), rank_(rank), size_(size), waits_for_others_(waits_for_others),
      looked_(std::chrono::steady_clock::now()) {}

std::shared_ptr<Store> FormationWatch::watched(std::shared_ptr<FormationWatch> watch, std::shared_ptr<Store> store) {
  return std::make_shared<WatchedStore>(std::move(watch), std::move(store));
}

std::string FormationWatch::failure() {
  const std::lock_guard lock(mutex_);
  const auto now = std::chrono::steady_clock::now();
  if (!failure_.empty() || is_finished() || now - looked_ < kBetweenQuestions) return failure_;
  try {
    if (store_->check({kFailureKey})) failure_ = store_->get(kFailureKey);
    if (failure_.empty() && !is_asked_ && store_->check({kQuestionKey})) {
      store_->set(here_key(rank_), "1");
      is_asked_ = true;
    }
  } catch (const CommTimeout& error) {  // the rank that holds the store is stopped
    failure_ = kLate + std::string(error.what());
  }
  looked_ = std::chrono::steady_clock::now();
  return failure_;
}

void FormationWatch::check() {
  if (const std::string first = failure(); !first.empty()) raise_outcome(first);
}

// Connections to this rank may break before the store notices the end of the process that broke them.
std::string FormationWatch::find_first(const Error& error) {
  {
    const std::lock_guard lock(mutex_);
    if (!failure_.empty()) return failure_;
  }
  const bool late = dynamic_cast<const CommTimeout*>(&error) != nullptr;
  if (dynamic_cast<const CommError*>(&error)) {
    try {
      return store_->get(kFailureKey, late ? kBetweenQuestions : kUntilNoticed);
    } catch (const CommTimeout&) {
      // No other rank has recorded a failure: this rank is the first.
    }
  }
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
  store_->set(here_key(rank_), "1");
  store_->set(kQuestionKey, "1");
  try {
    store_->wait(keys_of_others(here_key), kUntilNoticed);
    return {};
  } catch (const CommTimeout&) {
    std::vector<int> silent;
    for (int rank = 0; rank < size_; ++rank) {
      if (!store_->check({here_key(rank)})) silent.push_back(rank);
    }
    return silent;
  }
}

std::vector<std::string> FormationWatch::keys_of_others(std::string (*key)(int rank)) const {
  std::vector<std::string> keys;
  for (int rank = 0; rank < size_; ++rank) {
    if (rank != rank_) keys.push_back(key(rank));
  }
  return keys;
}

std::string FormationWatch::record(const Error& error) {
  const bool late = dynamic_cast<const CommTimeout*>(&error) != nullptr,
             is_of_ranks = dynamic_cast<const CommError*>(&error) != nullptr;  // a CommError names the ranks itself
  return store_->compare_set(
      kFailureKey, "",
      fmt::format("{}{}{}", late ? kLate : kLost, is_of_ranks ? "" : fmt::format("rank {}: ", rank_), error.what()));
}

void FormationWatch::let_others_hear() {
  store_->set(heard_key(rank_), "");
  if (!waits_for_others_) return;
  try {
    store_->wait(keys_of_others(heard_key), kUntilHeard);
  } catch (const CommTimeout&) {
    // The other rank is busy elsewhere and does not wait for this rank.
  }
}

void FormationWatch::explain(const Error& error) {
  const bool follows = dynamic_cast<const CommError*>(&error) != nullptr;
  std::string first;
  try {
    first = find_first(error);
    let_others_hear();
  } catch (const CommError&) {  // the store's holder has ended, which explains any failure of this rank
    if (first.empty() && follows) throw;
  } catch (const Error&) {
    return;
  }
  const bool is_own = first.find(error.what()) != std::string::npos;
  if (follows && !first.empty() && !is_own) raise_outcome(first);
}

void FormationWatch::pass_on(const Error& error) {
  try {
    record(error);
    let_others_hear();
  } catch (const Error&) {
    // The store has ended: no rank waits for its keys.
  }
}

void FormationWatch::finish() {
  finished_.store(true, std::memory_order_release);
  if (will_) will_->cancel();
  will_ = nullptr;
}

// --- the alarm ------------------------------------------------------------------------------------------------------

FormationAlarm::FormationAlarm(FormationWatch* watch, Callback<void()> on_failure)
    : watch_(watch), on_failure_(std::move(on_failure)) {
  if (watch_) thread_ = std::thread([this] { run(); });
}

FormationAlarm::~FormationAlarm() {
  if (!thread_.joinable()) return;
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  stop_.notify_one();
  thread_.join();
}

void FormationAlarm::run() {
  std::unique_lock lock(mutex_);
  for (bool failed = false; !failed;) {
    if (stop_.wait_for(lock, 2 * kBetweenQuestions, [this] { return stopping_; })) return;
    lock.unlock();
    try {
      failed = !watch_->failure().empty();
    } catch (const Error&) {  // the store has ended, so the group has failed
      failed = true;
    }
    if (failed) on_failure_();
    lock.lock();
  }
}

}  // namespace lockstep::parallel
