// A store for keys that ranks need only while they make a group.
#pragma once

#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/parallel/rendezvous/store_table_internal.h"

namespace lockstep::parallel {

// Another store, and the keys that were set through this one, so that they can be deleted together.
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
