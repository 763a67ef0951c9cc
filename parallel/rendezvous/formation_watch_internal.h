// Finds the rank that ended or failed first while a group is created. All backends use it, over the group's store.
//
// Before the other ranks depend on a rank, the rank leaves a last-will entry: if the rank ends, the store sets the key
// `failure` unless the key exists. A rank that fails first reads `failure` for the end of another rank, and records
// its own error only if there is none. So all ranks throw the first cause, however many connections it has broken.
//
// A FileStore, or a store of the user, may not notice the end of a process. Over such a store each rank records its
// process, and the ranks that wait check whether the processes on their host exist. They set the keys of a rank that
// has ended as its last-will entry would. Not installed.
#pragma once

#include <atomic>
#include <chrono>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "lockstep/base/callback.h"
#include "lockstep/parallel/rendezvous/store_protocol_internal.h"

namespace lockstep::parallel {

// First character of an outcome that is an error; the error text follows.
inline constexpr char kLost = 'L', kLate = 'T';
[[noreturn]] void raise_outcome(const std::string& outcome);

// "rank 1", "ranks 1, 2 and 5".
std::string list_ranks(const std::vector<int>& ranks);

class FormationWatch {
 public:
  // `store` is used for this group alone; `where` begins the message about a rank that ends. With `waits_for_others`,
  // after a failure the rank stays until the others have received the reason. This is for a rank that holds the store,
  // and for a store that is treated as one of an earlier run once it has no users.
  FormationWatch(std::shared_ptr<Store> store, std::string where, int rank, int size, bool waits_for_others);

  // Leaves the last-will entry. Call before another rank depends on this one.
  void begin();
  // The end of a rank sets this key, too, unless it exists: a registration waits for it.
  static constexpr const char* kOutcome = "outcome";
  // Waits until the key exists, and returns its value.
  std::string get(const std::string& key, std::chrono::milliseconds timeout);

  // Wraps `store` so that waits end with the reason once the group has failed. After finish() only forwards to
  // `store`.
  static std::shared_ptr<Store> watched(std::shared_ptr<FormationWatch> watch, std::shared_ptr<Store> store);

  // The reason of the failure that the store holds; empty if there is none.
  std::string failure();
  // Throws the CommError that all ranks throw, if the group has failed.
  void check();
  // For a rank that has failed with `error`: throws the CommError of the rank that ended or failed first, if that may
  // have caused `error`. Otherwise `error` is the first cause: records it as the reason for the other ranks, and
  // returns.
  void explain(const Error& error);
  // For a rank whose `error` says what failed: records it as the reason for the ranks that wait at the store. Throws the
  // reason of the other ranks if this rank has read one before.
  void pass_on(const Error& error);
  // Confirms that this rank has received the reason. If this rank waits for others, returns after a limited time, or
  // when all of `ranks` have confirmed it.
  void acknowledge_failure(const std::vector<int>& ranks);
  // Call when the group is complete: cancels the last-will entry.
  void finish();
  std::vector<int> all_ranks() const { return all_but({}); }
  std::vector<int> all_but(const std::vector<int>& ranks) const;
  // The ranks below `size` whose key is in the store.
  std::vector<int> ranks_with(std::string (*key)(int rank), int size) const;
  bool waits_for_others() const { return waits_for_others_; }
  bool is_finished() const { return finished_.load(std::memory_order_acquire); }

 private:
  std::string known_failure();
  std::string failure_within(std::chrono::milliseconds limit);
  std::string find_first(const Error& error);
  std::vector<int> silent_ranks();
  std::string last_will_of(int rank, const std::string& process) const;
  std::vector<std::string> keys_of_others(std::string (*key)(int rank), const std::vector<int>& ranks) const;
  std::string record(const Error& error);
  void check_processes();

  std::shared_ptr<Store> store_;
  std::string where_;
  int rank_, size_;
  bool waits_for_others_;
  std::unique_ptr<LastWill> last_will_;
  bool records_processes_ = false;  // the store has no last-will entries
  std::atomic<bool> finished_{false};
  std::atomic<bool> has_replied_{false};  // whether this rank has replied to one that timed out
  std::mutex mutex_;                      // guards the members below
  std::vector<std::string> processes_;    // the identities of the ranks' processes; empty: unknown yet
  std::chrono::steady_clock::time_point next_check_;
  std::string failure_;
  std::chrono::steady_clock::time_point checked_;
};

// A thread that checks whether the group has failed and then calls `on_failure` once: for a library whose waits cannot
// be ended otherwise. No thread if `watch` is null.
std::jthread formation_alarm(FormationWatch* watch, Callback<void()> on_failure);
// A thread that replies to ranks that time out, while this rank waits for something else than the store. No thread if
// `watch` is null.
std::jthread formation_answers(FormationWatch* watch);

// A store for keys that ranks need only while they create a group. Forwards to another store and remembers the keys it
// changed, so that clear() can delete them.
class ScratchStore final : public Store {
 public:
  explicit ScratchStore(std::shared_ptr<Store> store) : store_(std::move(store)) { set_timeout(store_->timeout()); }

  std::string request(const StoreRequest& request, std::chrono::milliseconds timeout) override {
    if (changes_table(request.op)) {
      const std::lock_guard lock(mutex_);
      keys_.insert(request.keys.begin(), request.keys.end());
    }
    return store_->request(request, timeout);
  }

  // Deletes this rank's keys. Every rank calls this when no rank needs the keys any more.
  void clear() {
    const std::lock_guard lock(mutex_);
    for (const std::string& key : keys_) store_->delete_key(key);
    keys_.clear();
  }

 private:
  std::shared_ptr<Store> store_;
  std::mutex mutex_;
  std::set<std::string> keys_;
};

}  // namespace lockstep::parallel
