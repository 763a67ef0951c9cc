// Finds the rank that ended or failed first while a group is created. All backends use it, over the group's store.
//
// Before the other ranks depend on a rank, the rank leaves a last-will entry: if the rank ends, the store sets the key
// `failure` unless the key exists. A rank that fails first reads `failure` for the end of another rank, and records
// its own error only if there is none. So all ranks throw the first cause, however many connections it has broken. Not
// installed.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "lockstep/parallel/rendezvous/store_protocol_internal.h"
#include "lockstep/tensor/callback.h"

namespace lockstep::parallel {

class FormationWatch {
 public:
  // The keys that the last-will entry of `rank` must set, in addition to the caller's keys.
  static std::vector<std::string> keys_of(int rank);

  // `store` is used for this group alone. `will` sets the keys of this rank; null if the store has no last-will
  // entries. With `waits_for_others`, after a failure the rank stays until the others have received the reason. This
  // is for a rank that holds the store, and for a store that is treated as one of an earlier run once it has no users.
  FormationWatch(std::shared_ptr<Store> store, std::unique_ptr<LastWill> will, int rank, int size,
                 bool waits_for_others);

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
  // For a rank whose `error` is the first cause: records it as the reason for the ranks that wait at the store.
  void pass_on(const Error& error);
  // Call when the group is complete: cancels the last-will entry.
  void finish();
  bool is_finished() const { return finished_.load(std::memory_order_acquire); }

 private:
  std::string find_first(const Error& error);
  std::vector<int> silent_ranks();
  std::vector<std::string> keys_of_others(std::string (*key)(int rank)) const;
  std::string record(const Error& error);
  void let_others_hear();

  std::shared_ptr<Store> store_;
  std::unique_ptr<LastWill> will_;
  int rank_, size_;
  bool waits_for_others_;
  std::atomic<bool> finished_{false};
  std::mutex mutex_;  // guards the members below
  std::string failure_;
  bool is_asked_ = false;  // whether a rank that timed out asked this rank for a reply, and this rank has answered
  std::chrono::steady_clock::time_point looked_;
};

// Runs a thread for its lifetime that checks whether the group has failed and then calls `on_failure` once: for a
// library whose waits cannot be ended otherwise. Does nothing if `watch` is null.
class FormationAlarm {
 public:
  FormationAlarm(FormationWatch* watch, Callback<void()> on_failure);
  ~FormationAlarm();
  FormationAlarm(const FormationAlarm&) = delete;
  FormationAlarm& operator=(const FormationAlarm&) = delete;

 private:
  void run();

  FormationWatch* watch_;
  Callback<void()> on_failure_;
  std::mutex mutex_;
  std::condition_variable stop_;
  bool stopping_ = false;
  std::thread thread_;
};

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
