// A store for what ranks tell each other only while they make a group.
#pragma once

#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/parallel/rendezvous/store.h"

namespace lockstep::parallel {

// Another store, and the keys that were set through this one, so that they can be deleted together.
class ScratchStore final : public Store {
 public:
  using Store::get;
  using Store::wait;
  explicit ScratchStore(std::shared_ptr<Store> store) : store_(std::move(store)) { set_timeout(store_->timeout()); }

  void set(const std::string& key, const std::string& value) override { store_->set(noted(key), value); }
  std::string get(const std::string& key, std::chrono::milliseconds timeout) override {
    return store_->get(key, timeout);
  }
  std::int64_t add(const std::string& key, std::int64_t amount) override { return store_->add(noted(key), amount); }
  std::string compare_set(const std::string& key, const std::string& expected, const std::string& desired) override {
    return store_->compare_set(noted(key), expected, desired);
  }
  void wait(const std::vector<std::string>& keys, std::chrono::milliseconds timeout) override {
    store_->wait(keys, timeout);
  }
  bool delete_key(const std::string& key) override { return store_->delete_key(key); }

  // Deletes this rank's keys. Every rank calls it, when no rank needs any of them.
  void clear() {
    const std::lock_guard lock(mutex_);
    for (const std::string& key : keys_) store_->delete_key(key);
    keys_.clear();
  }

 private:
  const std::string& noted(const std::string& key) {
    const std::lock_guard lock(mutex_);
    keys_.insert(key);
    return key;
  }

  std::shared_ptr<Store> store_;
  std::mutex mutex_;
  std::set<std::string> keys_;
};

}  // namespace lockstep::parallel
