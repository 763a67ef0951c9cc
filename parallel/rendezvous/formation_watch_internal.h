// Finds the rank that ended or failed first while a group is being made. It is one mechanism for all backends, over the group's store.
//
// Before the other ranks count on it, each rank leaves a last will: if the rank ends, the store sets the key `failure`, unless it
// is there. A rank that fails first looks for another rank's end in `failure`, and only then becomes the reason itself. So the
// first cause is the error of all ranks, however many connections its end has broken. Not installed.
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
  // The keys that the last will of `rank` has to set, besides those of the caller's.
  static std::vector<std::string> keys_of(int rank);

  // `store` is for this formation alone. `will` has the keys of this rank in it; null where the store takes none. A rank that
  // `waits_for_others` stays, after a failure, until they have received the reason: where it holds the store, or where a store
  // that nobody uses any more is taken for that of an earlier run.
  FormationWatch(std::shared_ptr<Store> store, std::unique_ptr<LastWill> will, int rank, int size,
                 bool waits_for_others);

  // `store` as it is, but that waits end with the reason when the formation has failed. After finish() it is `store` alone.
  static std::shared_ptr<Store> watched(std::shared_ptr<FormationWatch> watch, std::shared_ptr<Store> store);

  // Why the formation has failed, as far as the store says; empty while it has not.
  std::string failure();
  // Throws the CommError of all ranks where the formation has failed.
  void check();
  // For a rank that has failed with `error`: throws the CommError of the rank that ended or failed first, if `error` may follow
  // from that. Returns where `error` is the first cause, and makes it the reason of the other ranks.
  void explain(const Error& error);
  // For a rank that has failed with `error`, which is the first cause: makes it the reason of those that wait at the store.
  void pass_on(const Error& error);
  // The group is made: cancels the last will.
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
  std::mutex mutex_;  // of what follows
  std::string failure_;
  bool is_asked_ = false;  // whether this rank waits, by one whose time is over; it has answered
  std::chrono::steady_clock::time_point looked_;
};

// While it lives, a thread looks for a failure of the formation, and calls `on_failure` once after one: for a library whose waits
// end in no other way. Without a watch it does nothing.
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

// A store for keys that ranks need only while they make a group: another store, and the keys that were set through this one, so that they can be deleted together.
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

  // Deletes this rank's keys. Every rank calls it, when no rank needs any of them.
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
